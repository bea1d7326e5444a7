//! What a folder may hold: a small CLIP written by the test, and each way of breaking it.

use std::{collections::BTreeMap, fs};

use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView};
use tempfile::TempDir;

use super::*;

const SMALL: &str = r#"{"architectures": ["CLIPModel"], "projection_dim": 4,
    "text_config": {"hidden_size": 6, "intermediate_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 5, "vocab_size": 7, "eos_token_id": 6},
    "vision_config": {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 4, "patch_size": 2}}"#;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>)>;

/// The tensors that `SMALL` calls for, in half precision.
fn small() -> Tensors {
    let config = config::parse(Path::new(CONFIG), SMALL.as_bytes()).unwrap();
    inventory(&config).into_iter().map(|spec| (spec.name, (Dtype::F16, spec.shape))).collect()
}

fn file(tensors: &Tensors) -> Vec<u8> {
    let bytes = |(dtype, shape): &(Dtype, Vec<usize>)| {
        vec![0_u8; shape.iter().product::<usize>() * dtype.bitsize() / 8]
    };
    let data: BTreeMap<&String, Vec<u8>> = tensors.iter().map(|(n, t)| (n, bytes(t))).collect();
    let views = tensors.iter().map(|(name, (dtype, shape))| {
        (name, TensorView::new(*dtype, shape.clone(), &data[name]).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// A folder with `SMALL` as its configuration and these files beside it.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(CONFIG), SMALL).unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// The error for a folder, the temporary path left out.
fn message(folder: &TempDir) -> String {
    let text = ModelFolder::open(folder.path()).unwrap_err().to_string();
    text.replace(folder.path().to_str().unwrap(), "m")
}

fn weights_message(bytes: &[u8]) -> String {
    message(&folder(&[(WEIGHTS, bytes)]))
}

/// A header of this text, then this many bytes.
fn handmade(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; data]);
    bytes
}

#[test]
fn a_checked_folder_says_what_is_in_it() {
    let mut tensors = small();
    tensors.insert("logit_scale".into(), (Dtype::F32, vec![]));
    tensors.insert("text_model.embeddings.position_ids".into(), (Dtype::I64, vec![1, 5]));
    let bytes = file(&tensors);
    let folder = folder(&[(WEIGHTS, &bytes)]);
    let model = ModelFolder::open(folder.path()).unwrap();
    assert_eq!(model.weights_digest().unwrap(), Digest::of(&bytes));
    let listing: Vec<String> = [Component::Text, Component::Vision]
        .into_iter()
        .flat_map(|component| model.tensors(component))
        .map(|spec| format!("{} {:?} {} {:?}", spec.component, spec.layer, spec.name, spec.shape))
        .collect();
    insta::assert_snapshot!(listing.join("\n"));
    assert_eq!(model.parameters(Component::Text), 7 * 6 + 5 * 6 + 2 * 302 + 12 + 24);
    assert_eq!(model.parameters(Component::Score), 0);
    let half = model.stored_bytes(Component::Vision);
    assert_eq!(model.weight_bytes(Component::Vision, Precision::Fp16), half);
    assert_eq!(model.weight_bytes(Component::Vision, Precision::Fp32).as_u64(), 2 * half.as_u64());
}

#[test]
fn a_changed_configuration_is_another_model() {
    let bytes = file(&small());
    let (one, other) = (folder(&[(WEIGHTS, &bytes)]), folder(&[(WEIGHTS, &bytes)]));
    let gelu = SMALL.replacen("\"hidden_size\"", "\"hidden_act\": \"gelu\", \"hidden_size\"", 1);
    fs::write(other.path().join(CONFIG), gelu).unwrap();
    let [one, other] = [one, other].map(|folder| ModelFolder::open(folder.path()).unwrap());
    assert_eq!(one.weights_digest().unwrap(), other.weights_digest().unwrap());
    assert_ne!(one.identity().unwrap(), other.identity().unwrap());
}

#[test]
fn the_real_model_opens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/models/tiny-clip");
    let model = ModelFolder::open(&path).unwrap();
    assert_eq!(model.config().vision.tokens(), 50);
    let parameters = [Component::Text, Component::Vision].map(|part| model.parameters(part));
    assert_eq!(parameters, [2_621_568, 5_014_784]);
}

#[test]
fn missing_files_and_other_formats_are_named() {
    let no_config = tempfile::tempdir().unwrap();
    let messages = [
        ModelFolder::open(Path::new("no/such/folder")).unwrap_err().to_string(),
        message(&no_config),
        message(&folder(&[])),
        message(&folder(&[("pytorch_model.bin", b"PK\x03\x04")])),
        message(&folder(&[(INDEX, b"{}")])),
        weights_message(b"PK\x03\x04 a zip archive, as torch.save writes it"),
        weights_message(b"\x80\x02}q\x00(X\x05 a pickle without an archive"),
        message(&folder(&[(CONFIG, &vec![b' '; (1 << 20) + 1])])),
        message(&folder(&[(CONFIG, br#"{"architectures": ["\u001b[2JOops\n"]}"#)])),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn a_truncated_or_hostile_header_is_refused() {
    let good = file(&small());
    let tensor = |shape: &str, start: usize, end: usize| {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let many: Vec<String> =
        (0..20_001).map(|index| format!("\"{index}\":{}", tensor("[0]", 0, 0))).collect();
    let cases = [
        ("empty", vec![]),
        ("only a length", good[..8].to_vec()),
        ("cut in the header", good[..100].to_vec()),
        ("cut in the tensors", good[..good.len() - 1].to_vec()),
        ("a byte too many", [&good[..], &[0]].concat()),
        ("a header of 2^63 bytes", [&(1_u64 << 63).to_le_bytes()[..], b"{}"].concat()),
        ("a header of 9 MiB", [&(9_u64 << 20).to_le_bytes()[..], b"{}"].concat()),
        ("not JSON", handmade("{\"a\":", 0)),
        ("not UTF-8", [&4_u64.to_le_bytes()[..], &[0xff; 4]].concat()),
        ("out of range", handmade(&format!("{{\"a\":{}}}", tensor("[2]", 0, 8)), 4)),
        ("a gap", handmade(&format!("{{\"a\":{}}}", tensor("[1]", 4, 8)), 8)),
        ("backwards", handmade(&format!("{{\"a\":{}}}", tensor("[1]", 8, 4)), 8)),
        (
            "shared bytes",
            handmade(
                &format!("{{\"a\":{},\"b\":{}}}", tensor("[1]", 0, 4), tensor("[1]", 2, 6)),
                6,
            ),
        ),
        ("too short for its shape", handmade(&format!("{{\"a\":{}}}", tensor("[9]", 0, 4)), 4)),
        (
            "a shape that overflows",
            handmade(&format!("{{\"a\":{}}}", tensor("[4294967296,4294967296,2]", 0, 4)), 4),
        ),
        (
            "two without elements",
            handmade(
                &format!("{{\"a\":{},\"b\":{}}}", tensor("[0]", 0, 0), tensor("[3,0]", 0, 0)),
                0,
            ),
        ),
        ("one name twice", handmade(&format!("{{\"a\":{0},\"a\":{0}}}", tensor("[1]", 0, 4)), 4)),
        (
            "a name that clears the screen",
            handmade(&format!("{{\"\\u001b[2J\\n\":{}}}", tensor("[1]", 0, 8)), 8),
        ),
        ("too many tensors", handmade(&format!("{{{}}}", many.join(",")), 0)),
    ];
    let messages: Vec<String> =
        cases.iter().map(|(what, bytes)| format!("{what}: {}", weights_message(bytes))).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let fc1 = "vision_model.encoder.layers.0.mlp.fc1.weight";
    let change = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = small();
        change(&mut tensors);
        weights_message(&file(&tensors))
    };
    let messages = [
        change(&|tensors| drop(tensors.remove(fc1))),
        change(&|tensors| {
            tensors.insert(
                "vision_model.encoder.layers.1.mlp.fc1.bias".into(),
                (Dtype::F16, vec![16]),
            );
        }),
        change(&|tensors| tensors.get_mut(fc1).unwrap().1.reverse()),
        change(&|tensors| tensors.get_mut(fc1).unwrap().0 = Dtype::F64),
        change(&|tensors| {
            tensors.remove(fc1);
            tensors.get_mut("text_projection.weight").unwrap().0 = Dtype::I8;
            tensors.insert("text_model.\u{1b}[2J\npooler".into(), (Dtype::F16, vec![1]));
        }),
        change(&|tensors| tensors.retain(|name, _| name.starts_with("text_model.encoder"))),
    ];
    insta::assert_snapshot!(messages.join("\n\n"));
}

/// Whoever only describes a model is not killed by what others do to its files.
#[test]
fn weights_that_change_while_they_are_read_are_told_and_kill_nobody() {
    let bytes = file(&small());
    let folder = folder(&[(WEIGHTS, &bytes)]);
    let path = folder.path().join(WEIGHTS);
    let open = || ModelFolder::open(folder.path()).unwrap();
    let told = |model: &ModelFolder| {
        let told = [model.weights_digest().map(drop), model.require_unchanged()];
        told.map(|told| matches!(told, Err(ModelError::Changed { .. })))
    };
    // Shorter than a page: a mapped byte behind it would be a SIGBUS.
    let shortened = open();
    fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(told(&shortened), [true, true]);

    fs::write(&path, &bytes).unwrap();
    let rewritten = open();
    assert_eq!(told(&rewritten), [false, false]);
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::io::Write::write_all(&mut file, &bytes[..9]).unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH;
    file.set_modified(now).unwrap();
    // The digest of what was opened is known already; that it changed is found all the same.
    assert_eq!(told(&rewritten), [false, true]);

    // Another file under the same name is another file: the opened one is as it was.
    fs::write(&path, &bytes).unwrap();
    let replaced = open();
    fs::write(folder.path().join("new"), b"other").unwrap();
    fs::remove_file(&path).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    assert_eq!(replaced.weights_digest().unwrap(), Digest::of(&bytes));
}

#[test]
fn no_file_of_a_folder_leads_out_of_the_roots() {
    let outside = folder(&[(WEIGHTS, &file(&small()))]);
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("blobs")).unwrap();
    let files = Files::beneath(std::slice::from_ref(&root)).unwrap();
    let told = |name: &str, weights: &Path| {
        // As caches of model hubs do, a folder of links.
        let model = root.join(name);
        fs::create_dir(&model).unwrap();
        fs::write(model.join(CONFIG), SMALL).unwrap();
        std::os::unix::fs::symlink(weights, model.join(WEIGHTS)).unwrap();
        let opened = ModelFolder::open_in(&model, &files).map(drop);
        opened.map_err(|error| std::error::Error::source(&error).unwrap().to_string())
    };
    fs::copy(outside.path().join(WEIGHTS), root.join("blobs/1")).unwrap();
    assert_eq!(told("absolute", &root.join("blobs/1")), Ok(()));
    assert_eq!(told("relative", Path::new("../blobs/1")), Ok(()));
    let refused = Err("it lies outside of the folders that may be read".to_owned());
    assert_eq!(told("out", &outside.path().join(WEIGHTS)), refused);
}

/// A header of a few tensors, some of whose claims are wrong.
fn claims() -> impl Strategy<Value = (String, usize)> {
    let number = prop_oneof![0_u64..20, Just(u64::MAX), Just(1 << 63), Just(1 << 32)];
    let shape = proptest::collection::vec(number.clone(), 0..4);
    let dtype = prop_oneof![Just("F32"), Just("F16"), Just("I64"), Just("F4"), Just("odd")];
    let name = prop_oneof![Just("a"), Just("b"), Just("__metadata__"), Just("logit_scale")];
    let tensor = (name, dtype, shape, number.clone(), number);
    let tensors = proptest::collection::vec(tensor, 0..4);
    (tensors, 0_usize..64).prop_map(|(tensors, data)| {
        let tensors = tensors.iter().map(|(name, dtype, shape, start, end)| {
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            )
        });
        let tensors: Vec<String> = tensors.collect();
        (format!("{{{}}}", tensors.join(",")), data)
    })
}

proptest! {
    /// What is listed lies inside the file, is as long as its shape says, and shares no byte.
    #[test]
    fn what_a_header_claims_is_true_or_refused((header, data) in claims()) {
        let bytes = handmade(&header, data);
        let folder = folder(&[(WEIGHTS, &bytes)]);
        let opened = WeightsFile::open(&folder.path().join(WEIGHTS), &Files::anywhere());
        if let Ok(weights) = opened {
            let mut total = 0;
            for (name, listed) in &weights.tensors {
                let bits = listed.shape.iter().product::<usize>() * listed.dtype.bitsize();
                prop_assert!(bits > 0, "{name}");
                if let Some(stored) = weights.tensor(name) {
                    prop_assert_eq!(stored.bytes.len() * 8, bits);
                }
                total += bits / 8;
            }
            prop_assert_eq!(8 + header.len() + total, bytes.len());
        }
    }

    /// Whatever stands in the file, opening answers; it neither panics nor takes long.
    #[test]
    fn damaged_bytes_never_panic(place in 0_usize..9_000, byte: u8, cut in 0_usize..9_000) {
        let mut bytes = file(&small());
        let place = place % bytes.len();
        bytes[place] = byte;
        bytes.truncate(cut.max(1));
        let folder = folder(&[(WEIGHTS, &bytes)]);
        drop(ModelFolder::open(folder.path()));
    }
}
