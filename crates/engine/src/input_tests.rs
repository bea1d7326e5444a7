//! What callers may rely on beside the numbers: refusals, and equal bits.

use std::{fs, thread};

use orchestrator_model::{ModelFolder, TextPooling};
use orchestrator_types::Precision;

use crate::{
    Attention, Pixels, Placement, Scorer, TextEncoder, VisionEncoder,
    reference_tests::{
        Reference, encode_images, encode_texts, folder, largest_difference, text, vision,
    },
};

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

#[test]
fn a_sample_does_not_feel_its_neighbours() {
    let (reference, encoder) = (Reference::open(), vision());
    let pixels = reference.floats("pixel_values");
    let (one, width) = (encoder.pixels(), encoder.width());
    let alone = encode_images(&encoder, &pixels[..4 * one], 4);
    for place in 0..4 {
        // The same picture in the same place, among others, and among nonsense.
        let mut among: Vec<f32> = pixels[8 * one..12 * one].to_vec();
        among[..one].fill(f32::NAN);
        let own = place * one..(place + 1) * one;
        among[own.clone()].copy_from_slice(&pixels[own]);
        let found = encode_images(&encoder, &among, 4);
        let own = place * width..(place + 1) * width;
        assert_eq!(bits(&found[own.clone()]), bits(&alone[own]), "place {place}");
    }
}

#[test]
fn a_text_does_not_feel_its_neighbours_or_its_padding() {
    let (reference, encoder) = (Reference::open(), text());
    let ids = &reference.ids()[..4 * 32];
    let alone = encode_texts(&encoder, ids, 32, 4);
    let mut changed = ids.to_vec();
    for (text, row) in changed.chunks_mut(32).enumerate() {
        let end = row.iter().position(|&id| id == 4095).unwrap();
        // The first text keeps its words, the others get one more of another text's.
        row[end + 1..].fill(7);
        row[1] = if text == 0 { row[1] } else { 1234 };
    }
    let found = encode_texts(&encoder, &changed, 32, 4);
    assert_eq!(bits(&found[..256]), bits(&alone[..256]));
    assert_ne!(bits(&found[256..]), bits(&alone[256..]));
}

#[test]
fn equal_tiles_give_equal_bits_on_every_thread_and_every_time() {
    let (reference, images, texts) = (Reference::open(), vision(), text());
    let (pixels, ids) = (reference.floats("pixel_values"), reference.ids());
    let expected_images = bits(&encode_images(&images, &pixels, 4));
    let expected_texts = bits(&encode_texts(&texts, &ids, 32, 32));
    thread::scope(|scope| {
        for _ in 0..3 {
            let (images, texts) = (images.for_thread(), texts.for_thread());
            let (pixels, ids) = (&pixels, &ids);
            let (expected_images, expected_texts) = (&expected_images, &expected_texts);
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(&bits(&encode_images(&images, pixels, 4)), expected_images);
                    assert_eq!(&bits(&encode_texts(&texts, ids, 32, 32)), expected_texts);
                }
            });
        }
    });
}

#[test]
fn inputs_that_do_not_fit_are_refused_with_a_reason() {
    let (images, texts) = (vision(), text());
    let mut out = vec![0.0; 256];
    let ids = [&[4094, 5][..], &[4095; 30]].concat();
    let mut words = |ids: &[i64], n, length| texts.encode(ids, n, length, &mut out);
    let mut found = vec![
        words(&ids, 1, 33),
        words(&ids, 1, 0),
        words(&ids, 1, 31),
        words(&ids, 2, 16),
        words(&[4094, 4096, 4095], 1, 3),
        words(&[4094, -1, 4095], 1, 3),
        words(&[4094, 5, 6], 1, 3),
    ];
    found.push(images.encode(Pixels::Numbers(&[0.0; 7]), 1, &mut out));
    found.push(images.encode(Pixels::Numbers(&[]), 0, &mut out));
    found.push(Scorer::new(256).scores(&[0.0; 255], &[0.0; 256], &mut [0.0]));
    found.push(Scorer::new(256).scores(&[0.0; 256], &[0.0; 256], &mut [0.0; 2]));
    found.push(VisionEncoder::load(&folder(), Placement::cpu(Precision::Int8)).map(drop));
    found.push(TextEncoder::load(&folder(), Placement::cpu(Precision::Int8)).map(drop));
    let messages: Vec<String> =
        found.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

/// tiny-clip with a changed configuration; the activation and the pooled token are not in the file.
fn configured(change: (&str, &str)) -> (tempfile::TempDir, ModelFolder) {
    let (real, copy) = (folder(), tempfile::tempdir().unwrap());
    let text = fs::read_to_string(real.path().join("config.json")).unwrap();
    assert!(text.contains(change.0));
    fs::write(copy.path().join("config.json"), text.replace(change.0, change.1)).unwrap();
    fs::copy(real.path().join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let folder = ModelFolder::open(copy.path()).unwrap();
    (copy, folder)
}

#[test]
fn pooling_at_the_largest_id_is_pooling_at_the_end_where_that_is_the_largest() {
    let ids = &Reference::open().ids()[..4 * 32];
    let (_files, old) = configured(("\"eos_token_id\": 4095", "\"eos_token_id\": 2"));
    assert_eq!(old.config().text.pooling, TextPooling::LargestId);
    let old = TextEncoder::load(&old, Placement::cpu(Precision::Fp32)).unwrap();
    assert_eq!(encode_texts(&old, ids, 32, 4), encode_texts(&text(), ids, 32, 4));
}

#[test]
fn the_three_forms_of_gelu_are_near_each_other_and_not_the_same() {
    let ids = &Reference::open().ids()[..4 * 32];
    let [exact, tanh] = ["gelu", "gelu_pytorch_tanh"].map(|name| {
        let (_files, folder) = configured(("quick_gelu", name));
        encode_texts(
            &TextEncoder::load(&folder, Placement::cpu(Precision::Fp32)).unwrap(),
            ids,
            32,
            4,
        )
    });
    let quick = encode_texts(&text(), ids, 32, 4);
    let near = largest_difference(&exact, &tanh);
    let far = largest_difference(&exact, &quick);
    assert!(1e-6 < near && near < 5e-3 && near < far && far < 0.1, "{near:e} {far:e}");
}

#[test]
fn nothing_in_gives_nothing_out() {
    vision().encode(Pixels::Numbers(&[]), 0, &mut []).unwrap();
    text().encode(&[], 0, 16, &mut []).unwrap();
    Scorer::new(256).scores(&[], &[0.0; 256], &mut []).unwrap();
}

fn with(placement: Placement) -> (VisionEncoder, TextEncoder) {
    (
        VisionEncoder::load(&folder(), placement).unwrap(),
        TextEncoder::load(&folder(), placement).unwrap(),
    )
}

/// Largest differences of image and text embeddings to fp32's fused and unchunked ones.
fn differences(placement: Placement) -> (f32, f32) {
    let (reference, (images, texts)) = (Reference::open(), with(placement));
    let (pixels, ids) = (reference.floats("pixel_values"), reference.ids());
    let found = encode_images(&images, &pixels, 4);
    let image = largest_difference(&found, &encode_images(&vision(), &pixels, 4));
    let found = encode_texts(&texts, &ids, 32, 32);
    (image, largest_difference(&found, &encode_texts(&text(), &ids, 32, 32)))
}

#[test]
fn half_precisions_are_near_and_not_the_same() {
    for (precision, bound) in [(Precision::Fp16, 0.01), (Precision::Bf16, 0.05)] {
        let (image, text) = differences(Placement::cpu(precision));
        assert!(1e-6 < image && image < bound, "{precision}: {image:e}");
        assert!(1e-6 < text && text < bound, "{precision}: {text:e}");
    }
}

#[test]
fn chunks_and_written_out_attention_change_rounding_alone() {
    let fp32 = Placement::cpu(Precision::Fp32);
    // Tiles of 4 images of 50 tokens and of 32 texts of 32 tokens: each is cut at least once.
    let chunked = Placement { chunk_tokens: 150, ..fp32 };
    let math = Placement { attention: Attention::Math, ..fp32 };
    for placement in [chunked, math] {
        let (image, text) = differences(placement);
        assert!(image < 2e-6 && text < 2e-6, "{placement:?}: {image:e} {text:e}");
    }
}

#[test]
fn bytes_normalised_on_the_device_are_the_numbers_up_to_rounding() {
    let encoder = vision();
    let crops: Vec<u8> = (0..=250).cycle().step_by(7).take(4 * encoder.pixels()).collect();
    let (scale, shift) = ([0.014, 0.015, 0.016], [-1.8, -1.7, -1.5]);
    let plane = encoder.pixels() / 3;
    let mut numbers = vec![0.0; crops.len()];
    for (at, byte) in crops.iter().enumerate() {
        let (picture, inside) = (at / encoder.pixels(), at % encoder.pixels());
        let (pixel, channel) = (inside / 3, inside % 3);
        numbers[picture * encoder.pixels() + channel * plane + pixel] =
            f32::from(*byte).mul_add(scale[channel], shift[channel]);
    }
    let mut found = vec![0.0; 4 * encoder.width()];
    encoder.encode(Pixels::Bytes { crops: &crops, scale, shift }, 4, &mut found).unwrap();
    assert!(largest_difference(&found, &encode_images(&encoder, &numbers, 4)) < 2e-6);
}
