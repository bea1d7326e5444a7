use std::{collections::BTreeMap, fs};

use proptest::prelude::*;

use super::*;
use crate::image::{DecodeLimits, decode};

fn manifest_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn data() -> std::path::PathBuf {
    manifest_folder().join("../../tests/data")
}

fn golden(name: &str) -> BTreeMap<String, String> {
    serde_json::from_slice(&fs::read(manifest_folder().join("tests/golden").join(name)).unwrap())
        .unwrap()
}

/// `"224 223x225"`: shortest edge, then width × height of the crop.
fn recipe(edge: &str, crop: &str) -> Recipe {
    let (width, height) = crop.split_once('x').unwrap();
    let geometry = Geometry::ShortestEdge {
        edge: edge.parse().unwrap(),
        width: width.parse().unwrap(),
        height: height.parse().unwrap(),
    };
    Recipe::new(geometry, None, None)
}

fn picture(path: &str) -> RgbImage {
    decode(&fs::read(data().join(path)).unwrap(), &DecodeLimits::default()).unwrap()
}

/// The same bytes as `make_golden.py` makes.
fn synthetic(width: u32, height: u32) -> RgbImage {
    let byte = |index: u32| index.wrapping_mul(2_654_435_761).wrapping_shr(13).to_le_bytes()[0];
    RgbImage::new(width, height, (0..width * height * 3).map(byte).collect()).unwrap()
}

fn compare(golden: &BTreeMap<String, String>, image: impl Fn(&str) -> RgbImage) {
    let mut wrong = Vec::new();
    for (case, expected) in golden {
        let [name, edge, crop] = case.split(' ').collect::<Vec<_>>()[..] else { panic!("{case}") };
        let found = recipe(edge, crop).crop(&image(name));
        if blake3::hash(found.pixels()).to_hex()[..32] != **expected {
            wrong.push(case.as_str());
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ: {wrong:#?}", wrong.len(), golden.len());
}

#[test]
fn crops_of_pictures_are_pillows() {
    compare(&golden("crop.json"), picture);
}

#[test]
fn crops_of_odd_shapes_are_pillows() {
    compare(&golden("synthetic.json"), |name| {
        let (width, height) = name.split_once('x').unwrap();
        synthetic(width.parse().unwrap(), height.parse().unwrap())
    });
}

#[test]
fn numbers_are_those_of_the_reference_to_the_last_bit() {
    let folder = data().join("reference/tiny-clip");
    let reference: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("reference.json")).unwrap()).unwrap();
    let bytes = fs::read(folder.join("reference.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let expected = tensors.tensor("pixel_values").unwrap();
    let recipe = Recipe::open(&data().join("models/tiny-clip")).unwrap();
    let per_image = 3 * 112 * 112;
    for (index, expected) in expected.data().chunks_exact(per_image * 4).enumerate() {
        let hex = reference["reference_images"][index]["hex"].as_str().unwrap();
        let mut numbers = vec![0.0; per_image];
        recipe.normalise(&recipe.crop(&fluent(hex)), &mut numbers);
        let found: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert!(found == expected, "{hex}");
    }
}

fn fluent(hex: &str) -> RgbImage {
    let folder = data().join("fluent/imagefolder");
    let classes = fs::read_dir(folder).unwrap().map(|class| class.unwrap().path());
    let file = classes.map(|class| class.join(format!("{hex}.jpg"))).find(|file| file.exists());
    decode(&fs::read(file.unwrap()).unwrap(), &DecodeLimits::default()).unwrap()
}

#[test]
fn the_recipe_describes_itself() {
    let recipe = Recipe::open(&data().join("models/tiny-clip")).unwrap();
    insta::assert_snapshot!(recipe.describe(), @"RGB as Pillow, bicubic as Pillow, resize shortest edge to 112, crop 112x112 from the centre, times 0.00392156862745098, mean [0.48145466, 0.4578275, 0.40821073], std [0.26862954, 0.26130258, 0.27577711]");
    assert_eq!(recipe.size(), (112, 112));
}

/// Reads a recipe from text; messages name the file without its folder.
fn read(text: &str) -> Result<Recipe, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("preprocessor_config.json"), text).unwrap();
    Recipe::open(folder.path()).map_err(|error| {
        let place = format!("{}/", folder.path().display());
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default()).replace(&place, "")
    })
}

#[test]
fn older_and_shorter_files_mean_the_same() {
    let new = r#"{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224},
                  "crop_size": {"height": 224, "width": 224}, "do_rescale": true,
                  "rescale_factor": 0.00392156862745098, "resample": 3, "do_resize": true}"#;
    let expected = read(new).unwrap();
    let old = r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224,
                  "do_center_crop": true, "do_normalize": true, "resample": 3}"#;
    assert_eq!(read(old).unwrap(), expected);
    assert_eq!(read("{}").unwrap(), expected);
    let siglip = r#"{"image_processor_type": "SiglipImageProcessor", "do_convert_rgb": null}"#;
    insta::assert_snapshot!(read(siglip).unwrap().describe(), @"RGB as Pillow, bicubic as Pillow, resize to 224x224, times 0.00392156862745098, mean [0.5, 0.5, 0.5], std [0.5, 0.5, 0.5]");
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let cases = [
        "",
        "[]",
        r#"{"resample": 2}"#,
        r#"{"resample": "bicubic"}"#,
        r#"{"size": {"longest_edge": 224}}"#,
        r#"{"size": 0}"#,
        r#"{"size": -5}"#,
        r#"{"crop_size": {"height": 100000, "width": 224}}"#,
        r#"{"crop_size": {"shortest_edge": 224}}"#,
        r#"{"do_center_crop": false}"#,
        r#"{"do_center_crop": "yes"}"#,
        r#"{"do_pad": true}"#,
        r#"{"image_mean": [0.5, 0.5]}"#,
        r#"{"image_std": [0.5, 0.0, 0.5]}"#,
        r#"{"rescale_factor": 0}"#,
        r#"{"image_processor_type": "ViTImageProcessor"}"#,
        r#"{"size": {"height": 256, "width": 256}}"#,
    ];
    let message = |text: &&str| format!("{text}\n  {}\n", read(text).unwrap_err());
    insta::assert_snapshot!(cases.iter().map(message).collect::<String>());
    let missing = Recipe::open(Path::new("/nowhere")).unwrap_err();
    insta::assert_snapshot!(missing, @"cannot read /nowhere/preprocessor_config.json; a model folder in Hugging Face layout has this file");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A window of a resize is the same bytes as that part of the whole resize.
    #[test]
    fn a_crop_is_a_part_of_the_whole(
        width in 1_u32..90, height in 1_u32..90, edge in 1_u32..90,
        crop_width in 1_u32..120, crop_height in 1_u32..120,
    ) {
        let image = synthetic(width, height);
        let cut = Recipe::new(
            Geometry::ShortestEdge { edge, width: crop_width, height: crop_height }, None, None,
        );
        let (full_width, full_height) = cut.resized(&image);
        let full = Geometry::Exact { width: full_width, height: full_height };
        let whole = Recipe::new(full, None, None).crop(&image);
        let part = Recipe::new(
            Geometry::CropOnly { width: crop_width, height: crop_height }, None, None,
        );
        prop_assert!(cut.crop(&image) == part.crop(&whole));
    }

    /// No shape is too odd: sizes, and black where the picture does not reach.
    #[test]
    fn any_shape_gives_a_full_crop(width in 1_u32..3000, height in 1_u32..8, flip: bool) {
        let image = if flip { synthetic(height, width) } else { synthetic(width, height) };
        let crop = recipe("32", "32x32").crop(&image);
        prop_assert_eq!((crop.width(), crop.height()), (32, 32));
    }
}
