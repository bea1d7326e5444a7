//! Hostile model folders.

use std::fs;

use orchestrator_tests::{Home, data};

use super::{IMAGES, Rows, Seen, evaluation, good_image, model_with, pipe, run, sparse};

/// A header of this text, then this many bytes.
fn weights(header: &str, bytes: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; bytes]].concat()
}

fn tensor(name: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn one(shape: &str, start: u64, end: u64, bytes: usize) -> Vec<u8> {
    weights(&format!("{{{}}}", tensor("a", shape, start, end)), bytes)
}

pub(super) fn attack(rows: &mut Rows) {
    for (attack, made, name, content) in cases() {
        let home = home();
        model_with(&home, name, &content);
        rows.add(attack, made, &Seen::of(&home, &run(&home, &["check", "eval.yaml"])));
    }
    only(
        rows,
        "weights as pickle only",
        "`pytorch_model.bin`",
        "pytorch_model.bin",
        b"\x80\x02}q\x00.",
    );
    only(rows, "TorchScript only", "`model.pt`", "model.pt", b"PK\x03\x04");
    let index = br#"{"weight_map": {"a": "../../../etc/passwd", "b": "/etc/shadow"}}"#;
    only(
        rows,
        "shards that climb out",
        "`../../../etc/passwd` in the index",
        "model.safetensors.index.json",
        index,
    );

    for name in
        ["config.json", "tokenizer.json", "preprocessor_config.json", "tokenizer_config.json"]
    {
        let home = home();
        model_with(&home, name, b"");
        pipe(&home.path().join("model").join(name));
        let seen = Seen::of(&home, &run(&home, &["check", "eval.yaml"]));
        rows.add(&format!("{name} that is a pipe"), "`mkfifo`; nobody writes", &seen);
    }
    let home = home();
    model_with(&home, "tokenizer.json", b"");
    sparse(&home.path().join("model/tokenizer.json"), (64 << 20) + 1);
    let seen = Seen::of(&home, &run(&home, &["check", "eval.yaml"]));
    rows.add("large tokenizer.json", "64 MiB and a byte, sparse", &seen);
}

fn home() -> Home {
    let home = Home::default();
    good_image(&home);
    home.write("eval.yaml", evaluation("model", IMAGES));
    home
}

/// A folder that has this file in the place of model.safetensors.
fn only(rows: &mut Rows, attack: &str, made: &str, name: &str, content: &[u8]) {
    let home = home();
    model_with(&home, name, content);
    fs::remove_file(home.path().join("model/model.safetensors")).unwrap();
    rows.add(attack, made, &Seen::of(&home, &run(&home, &["check", "eval.yaml"])));
}

/// What it is, how it is made, the file and its content.
type Case = (&'static str, &'static str, &'static str, Vec<u8>);

fn cases() -> Vec<Case> {
    let many: Vec<String> =
        (0..20_001).map(|n| tensor(&n.to_string(), "[1]", 4 * n, 4 * n + 4)).collect();
    let two =
        |first: String, second: String, bytes| weights(&format!("{{{first},{second}}}"), bytes);
    let good = fs::read(data().join("models/tiny-clip/model.safetensors")).unwrap();
    let file = "model.safetensors";
    vec![
        ("header without end", "claims 2^64 - 1 bytes", file, [&[0xff; 8][..], b"{}"].concat()),
        ("large header", "9 MiB of blanks", file, weights(&" ".repeat(9 << 20), 0)),
        ("too many tensors", "20,001", file, weights(&format!("{{{}}}", many.join(",")), 80_004)),
        (
            "offsets outside of the file",
            "a tensor ends behind the last byte",
            file,
            one("[2]", 0, 8, 4),
        ),
        ("offsets that wrap", "from 2^64 - 4 to 0", file, one("[1]", u64::MAX - 3, 0, 4)),
        ("gap between tensors", "four bytes that are nobody's", file, one("[1]", 4, 8, 8)),
        (
            "shared bytes",
            "two tensors overlap",
            file,
            two(tensor("a", "[1]", 0, 4), tensor("b", "[1]", 2, 6), 6),
        ),
        (
            "shared offset of nothing",
            "two empty tensors in one place",
            file,
            two(tensor("a", "[0]", 0, 0), tensor("b", "[0]", 0, 0), 0),
        ),
        (
            "one name twice",
            "`a` and `a`",
            file,
            two(tensor("a", "[1]", 0, 4), tensor("a", "[1]", 0, 4), 4),
        ),
        (
            "shape that overflows",
            "2^32 × 2^32 × 2 elements",
            file,
            one("[4294967296,4294967296,2]", 0, 4, 4),
        ),
        ("shape larger than its bytes", "nine numbers in four bytes", file, one("[9]", 0, 4, 4)),
        ("bytes behind the last tensor", "one more", file, [&good[..], &[0]].concat()),
        ("cut file", "half of it", file, good[..good.len() / 2].to_vec()),
        (
            "tensors that the configuration does not call for",
            "one tensor `a`",
            file,
            one("[1]", 0, 4, 4),
        ),
        (
            "pickle as safetensors",
            "a zip archive as `torch.save` writes",
            file,
            b"PK\x03\x04archive/data.pkl".to_vec(),
        ),
        ("bare pickle as safetensors", "protocol 2", file, b"\x80\x02}q\x00.".to_vec()),
        ("large config.json", "1 MiB and a byte", "config.json", vec![b' '; (1 << 20) + 1]),
        ("deep config.json", "100,000 `[`", "config.json", vec![b'['; 100_000]),
        (
            "huge layers",
            "`hidden_size: 2^40`",
            "config.json",
            br#"{"architectures": ["CLIPModel"], "text_config": {"hidden_size": 1099511627776}}"#
                .to_vec(),
        ),
        (
            "code from the hub",
            "`auto_map` to a class of its own",
            "config.json",
            br#"{"architectures": ["Own"], "auto_map": {"AutoModel": "own--code.Own"}}"#.to_vec(),
        ),
        (
            "words for the terminal",
            "an escape in the architecture's name",
            "config.json",
            br#"{"architectures": ["\u001b[2J\u001b]0;owned\u0007\nerror: none"]}"#.to_vec(),
        ),
        ("deep tokenizer.json", "100,000 `[`", "tokenizer.json", vec![b'['; 100_000]),
        (
            "large preprocessor_config.json",
            "1 MiB and a byte",
            "preprocessor_config.json",
            vec![b' '; (1 << 20) + 1],
        ),
    ]
}
