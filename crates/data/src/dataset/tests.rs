use std::{fs, path::PathBuf};

use tempfile::TempDir;

use super::*;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

fn fluent() -> Manifest {
    Manifest::open(&Source::ImageFolder {
        root: data().join("fluent/imagefolder"),
        classes: Some(data().join("fluent/classes.json")),
    })
    .unwrap()
}

/// A folder with the given files; an entry that ends in `/` is a folder.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join(name);
        if name.ends_with('/') {
            fs::create_dir_all(path).unwrap();
        } else {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }
    root
}

fn folder(root: &TempDir, classes: bool) -> Source {
    Source::ImageFolder {
        root: root.path().join("pictures"),
        classes: classes.then(|| root.path().join("classes.json")),
    }
}

fn captions_file(root: &TempDir) -> Source {
    Source::Captions { file: root.path().join("captions.jsonl") }
}

/// The message, without the temporary folder.
fn refusal(root: &TempDir, source: &Source) -> String {
    let message = Manifest::open(source).unwrap_err().to_string();
    format!("{}\n", message.replace(&format!("{}/", root.path().display()), ""))
}

fn ids(manifest: &Manifest) -> Vec<&str> {
    manifest.samples().iter().map(|sample| sample.id.0.as_str()).collect()
}

/// What is no regular file, where one belongs: nobody waits for a pipe's writer.
#[test]
fn pipes_devices_and_endless_files_are_refused() {
    let root = tree(&[("pictures/cat/a.jpg", "x"), ("captions.jsonl/", ""), ("good.jpg", "x")]);
    let told = |source: &Source| refusal(&root, source);
    let mut messages = told(&captions_file(&root));
    fs::remove_dir(root.path().join("captions.jsonl")).unwrap();
    for file in ["captions.jsonl", "classes.json", "pipe.jpg"] {
        let path = root.path().join(file);
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    messages += &told(&captions_file(&root));
    messages += &told(&folder(&root, true));
    let zero = |path: &str| Source::Captions { file: path.into() };
    messages += &told(&zero("/dev/zero"));
    let lines = "{\"image\": \"pipe.jpg\", \"caption\": \"x\"}\n\
                 {\"image\": \"/dev/zero\", \"caption\": \"x\"}\n";
    fs::write(root.path().join("lines.jsonl"), lines).unwrap();
    messages += &told(&Source::Captions { file: root.path().join("lines.jsonl") });
    // A pipe in a folder of pictures is no picture.
    fs::remove_file(root.path().join("classes.json")).unwrap();
    fs::rename(root.path().join("pipe.jpg"), root.path().join("pictures/cat/pipe.jpg")).unwrap();
    assert_eq!(ids(&Manifest::open(&folder(&root, false)).unwrap()), ["cat/a.jpg"]);
    // Sparse: neither takes place on the disk.
    let sparse = |name: &str, bytes: u64| {
        fs::File::create(root.path().join(name)).unwrap().set_len(bytes).unwrap();
    };
    fs::remove_file(root.path().join("captions.jsonl")).unwrap();
    sparse("captions.jsonl", (2 << 30) + 1);
    sparse("classes.json", (64 << 20) + 1);
    messages += &told(&captions_file(&root));
    messages += &told(&folder(&root, true));
    insta::assert_snapshot!(messages);
}

#[test]
fn what_stands_in_a_file_cannot_drive_a_terminal_or_flood_it() {
    let clear = "\\u001b[2J\\n\\u202e";
    let long = "x".repeat(100_000);
    let classes = format!(
        r#"{{"classes": [{{"id": 0, "name": "/{clear}"}}, {{"id": 0, "name": "/{long}"}}], "templates": ["{clear}"]}}"#
    );
    let line = |image: &str| format!("{{\"image\": \"{image}\", \"caption\": \"x\"}}\n");
    let captions = [line(clear), line(&long), line(&format!("a{clear}")), line("../a\\u0000b")];
    let root = tree(&[
        ("pictures/cat/a.jpg", "x"),
        ("classes.json", &classes),
        ("captions.jsonl", &captions.concat()),
    ]);
    for source in [folder(&root, true), captions_file(&root)] {
        let message = refusal(&root, &source);
        let mut steering =
            message.chars().filter(|&c| c != '\n' && orchestrator_types::wording::steers(c));
        assert_eq!(steering.next(), None, "{message}");
        assert!(
            message.lines().skip(1).all(|line| line.starts_with("  - ") || line.is_empty()),
            "{message}"
        );
        assert!(message.len() < 20_000, "{} bytes", message.len());
    }
}

#[test]
fn captions_tell_nothing_of_what_lies_outside_of_the_roots() {
    let root = tree(&[("root/a.jpg", "x"), ("other/b.jpg", "x")]);
    let lines = ["a.jpg", "nothing.jpg", "../other/nothing.jpg"]
        .map(|image| format!("{{\"image\": \"{image}\", \"caption\": \"x\"}}\n"));
    fs::write(root.path().join("root/captions.jsonl"), lines.concat()).unwrap();
    let source = Source::Captions { file: root.path().join("root/captions.jsonl") };
    let open = |files: &[PathBuf]| Manifest::open_in(&source, &Files::beneath(files).unwrap());
    let told = open(&[root.path().join("root")]).unwrap_err().to_string();
    assert!(told.contains("`nothing.jpg` (No such file"), "{told}");
    assert!(told.contains("`../other/nothing.jpg` lies outside"), "{told}");
    let told = open(&[root.path().join("other")]).unwrap_err().to_string();
    assert!(told.contains("it lies outside of the folders that may be read"), "{told}");
}

proptest::proptest! {
    /// Whatever stands in them: an answer, and no panic.
    #[test]
    fn no_captions_and_no_class_list_panic(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
        pieces in proptest::collection::vec(proptest::sample::select(vec![
            "{\"image\": \"a.jpg\", \"caption\": \"x\"}", "{\"image\":", "\"captions\": [", "]", "}",
            "{\"classes\": [", "{\"id\": 0, \"name\": \"cat\"}", ",", "\"templates\": [\"{}\"]", "\n",
            "\u{feff}", "\u{0}", "18446744073709551616", "null", "\"\\ud800\"", "\"../..\"",
        ]), 0..12),
    ) {
        let root = tree(&[("pictures/cat/a.jpg", "x"), ("a.jpg", "x")]);
        for text in [bytes.as_slice(), pieces.concat().as_bytes()] {
            for (file, source) in [("classes.json", folder(&root, true)), ("captions.jsonl", captions_file(&root))] {
                fs::write(root.path().join(file), text).unwrap();
                if let Ok(manifest) = Manifest::open(&source) {
                    proptest::prop_assert!(manifest.samples().len() <= 1);
                }
            }
        }
    }
}

#[test]
fn the_emoji_set_is_complete_and_in_order() {
    let manifest = fluent();
    assert_eq!(manifest.samples().len(), 1593);
    assert_eq!(manifest.classes().len(), 95);
    assert!(manifest.warnings().is_empty());
    assert!(manifest.samples().is_sorted_by(|a, b| a.id < b.id));
    let first = &manifest.samples()[0];
    assert_eq!((first.id.0.as_str(), first.label), ("alphanum/1f170.jpg", Some(0)));
    let prompts = manifest.prompts();
    assert_eq!(prompts.len(), 95 * 6);
    let (class, template) = (3, 2);
    let expected = manifest.templates()[template].replace("{}", &manifest.classes()[class].label);
    assert_eq!(prompts[class * 6 + template], expected);
}

#[test]
fn captions_keep_the_files_order() {
    let source = Source::Captions { file: data().join("fluent/captions.jsonl") };
    let manifest = Manifest::open(&source).unwrap();
    assert_eq!(manifest.samples().len(), 1593);
    assert_eq!(ids(&manifest)[0], "imagefolder/face-smiling/1f600.jpg");
    let first = manifest.captions(CaptionChoice::First);
    assert_eq!((first.texts.len(), first.texts[0].as_str()), (1593, "grinning face"));
    let all = manifest.captions(CaptionChoice::All);
    assert_eq!(all.texts.len(), 5 * 1593);
    assert_eq!(all.sample_of[..6], [0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_folder_without_a_class_list_names_its_classes_itself() {
    let root = tree(&[
        ("pictures/tabby_cat/b.JPG", "1"),
        ("pictures/tabby_cat/deep/er/a.png", "22"),
        ("pictures/old-dog/x.webp", "333"),
        ("pictures/old-dog/.hidden.jpg", ""),
        ("pictures/old-dog/notes.txt", ""),
        ("pictures/.git/x.jpg", ""),
        ("pictures/none/", ""),
        ("pictures/README.md", ""),
        ("pictures/lost.jpeg", ""),
    ]);
    let manifest = Manifest::open(&folder(&root, false)).unwrap();
    assert_eq!(ids(&manifest), ["old-dog/x.webp", "tabby_cat/b.JPG", "tabby_cat/deep/er/a.png"]);
    let labels: Vec<_> = manifest.samples().iter().map(|sample| sample.label).collect();
    assert_eq!(labels, [Some(1), Some(2), Some(2)]);
    assert_eq!(manifest.samples()[2].bytes, ByteCount::bytes(2));
    let prompts = ["a photo of a none.", "a photo of a old dog.", "a photo of a tabby cat."];
    assert_eq!(manifest.prompts(), prompts);
    let warnings: Vec<String> = manifest.warnings().iter().map(Warning::to_string).collect();
    insta::assert_snapshot!(
        warnings.join("\n").replace(&format!("{}/", root.path().display()), "")
    );
}

#[test]
fn links_to_files_are_followed_and_loops_are_not() {
    let root = tree(&[("pictures/cat/a.jpg", "1"), ("elsewhere/b.jpg", "22")]);
    let cat = root.path().join("pictures/cat");
    std::os::unix::fs::symlink(root.path().join("elsewhere/b.jpg"), cat.join("b.jpg")).unwrap();
    std::os::unix::fs::symlink(root.path().join("pictures"), cat.join("loop")).unwrap();
    let manifest = Manifest::open(&folder(&root, false)).unwrap();
    assert_eq!(ids(&manifest), ["cat/a.jpg", "cat/b.jpg"]);
    assert_eq!(manifest.samples()[1].bytes, ByteCount::bytes(2));
    assert_eq!(manifest.warnings().len(), 1);
}

const TWO: &str = r#"{"classes": [{"id": 7, "name": "cat", "label": "cat"},
    {"id": 3, "name": "dog", "label": "hound", "note": 1}], "templates": ["a {}.", "the {}"]}"#;

#[test]
fn classes_follow_their_ids() {
    let root = tree(&[("classes.json", TWO), ("pictures/cat/a.jpg", "")]);
    let manifest = Manifest::open(&folder(&root, true)).unwrap();
    assert_eq!(manifest.prompts(), ["a hound.", "the hound", "a cat.", "the cat"]);
    assert_eq!(manifest.samples()[0].label, Some(1));
    assert_eq!(manifest.warnings(), [Warning::ClassWithoutImages { class: "dog".to_owned() }]);
}

#[test]
fn every_problem_of_a_class_list_is_reported() {
    let wrong = r#"{"classes": [{"id": 0, "name": "cat", "label": " "}, {"id": 0, "name": "a/b"},
        {"id": 1, "name": "cat", "label": "x"}], "templates": ["no place", "{} and {}", "{c}"]}"#;
    let cases = [
        (wrong, "pictures/cat/a.jpg"),
        (TWO, "pictures/dgo/a.jpg"),
        (TWO, "pictures/"),
        ("{", "pictures/cat/a.jpg"),
        (r#"{"templates": []}"#, "pictures/cat/a.jpg"),
        (r#"{"classes": [], "templates": []}"#, "pictures/cat/a.jpg"),
        (r#"{"classes": [{"id": -1, "name": "cat"}]}"#, "pictures/cat/a.jpg"),
    ];
    let mut messages = String::new();
    for (list, picture) in cases {
        let root = tree(&[("classes.json", list), (picture, "")]);
        messages += &refusal(&root, &folder(&root, true));
    }
    let root = tree(&[("pictures/cat/a.jpg", ""), ("file", "")]);
    messages += &refusal(&root, &folder(&root, true));
    let root_is_a_file = Source::ImageFolder { root: root.path().join("file"), classes: None };
    messages += &refusal(&root, &root_is_a_file);
    let missing = Source::ImageFolder { root: root.path().join("nowhere"), classes: None };
    messages += &refusal(&root, &missing);
    insta::assert_snapshot!(messages);
}

#[test]
fn every_bad_line_of_a_captions_file_is_reported() {
    let lines = [
        r#"{"image": "a.jpg", "captions": ["one", "two"]}"#,
        r#"{"image": "./a.jpg", "caption": "again"}"#,
        "",
        r#"{"image": "gone.jpg", "caption": "x"}"#,
        r#"{"image": "b.jpg", "captions": []}"#,
        r#"{"image": "b.jpg", "captions": ["x", " "]}"#,
        r#"{"image": "b.jpg"}"#,
        r#"{"image": "b.jpg", "caption": "x", "captions": ["y"]}"#,
        r#"{"image": "", "caption": "x"}"#,
        r#"{"image": 5, "caption": "x"}"#,
        r#"{"caption": "x"}"#,
        r#"["b.jpg"]"#,
        "not json",
        r#"{"image": "pictures", "caption": "x"}"#,
        "latin: \u{fffd}",
    ];
    let root = tree(&[("a.jpg", ""), ("b.jpg", ""), ("pictures/", ""), ("captions.tsv", "")]);
    // The last line is not UTF-8.
    let text = lines.join("\n").into_bytes();
    let text = [&text[..text.len() - 3], b"\xe9\n"].concat();
    fs::write(root.path().join("captions.jsonl"), text).unwrap();
    let mut messages = refusal(&root, &captions_file(&root));
    let file = |name: &str| Source::Captions { file: root.path().join(name) };
    messages += &refusal(&root, &file("captions.tsv"));
    messages += &refusal(&root, &file("nowhere.jsonl"));
    messages += &refusal(&root, &file("pictures"));
    fs::write(root.path().join("captions.jsonl"), "\n\n").unwrap();
    messages += &refusal(&root, &captions_file(&root));
    insta::assert_snapshot!(messages);
}

#[test]
fn captions_may_lie_beside_the_pictures() {
    let lines = "\u{feff}{\"image\": \"../far/a.jpg\", \"caption\": \"far\"}\r\n\
                 {\"image\": \"near//b.jpg\", \"captions\": [\"x\", \"y\"], \"extra\": 1}";
    let root = tree(&[("far/a.jpg", "1"), ("lists/near/b.jpg", ""), ("lists/c.jsonl", lines)]);
    let source = Source::Captions { file: root.path().join("lists/c.jsonl") };
    let manifest = Manifest::open(&source).unwrap();
    assert_eq!(ids(&manifest), ["../far/a.jpg", "near/b.jpg"]);
    let captions = manifest.captions(CaptionChoice::All);
    assert_eq!((captions.texts.len(), captions.sample_of), (3, vec![0, 1, 1]));
}

#[test]
fn many_problems_are_counted() {
    let root = tree(&[("captions.jsonl", &"no JSON\n".repeat(50))]);
    let errors = Manifest::open(&captions_file(&root)).unwrap_err();
    assert_eq!((errors.problems().len(), errors.total()), (20, 50));
    assert!(errors.to_string().ends_with("\n  and 30 more"));
}

#[test]
fn the_digest_knows_samples_and_prompts() {
    let files = [("classes.json", TWO), ("pictures/cat/a.jpg", "1"), ("pictures/dog/b.jpg", "1")];
    let root = tree(&files);
    let with = |classes: &str, picture: &str| {
        fs::write(root.path().join("classes.json"), classes).unwrap();
        fs::write(root.path().join("pictures/cat/a.jpg"), picture).unwrap();
        let manifest = Manifest::open(&folder(&root, true)).unwrap();
        (manifest.digest(), manifest.templates_digest())
    };
    let before = with(TWO, "1");
    assert_eq!(before, with(TWO, "1"));
    for classes in [TWO.replace("hound", "dog"), TWO.replace("{}", "the {}")] {
        assert_ne!(classes, TWO);
        let after = with(&classes, "1");
        assert_ne!(before.0, after.0, "{classes}");
        assert_ne!(before.1, after.1, "{classes}");
    }
    let after = with(TWO, "12");
    assert_ne!(before.0, after.0);
    assert_eq!(before.1, after.1, "no sample decides a prompt");
}
