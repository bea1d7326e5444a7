//! Hostile class lists, captions and paths.

use std::{fs, os::unix::fs::symlink};

use orchestrator_tests::Home;

use super::{IMAGES, Rows, Seen, evaluation, good_image, pipe, run, sparse, tiny_clip};

const CAPTIONS: &str = "{format: captions, path: captions.jsonl}";
const CLASSES: &str = "{format: imagefolder, path: images, classes: classes.json}";

pub(super) fn attack(rows: &mut Rows) {
    let line = |image: &str| format!("{{\"image\": \"{image}\", \"caption\": \"x\"}}\n");
    let captions = [
        ("captions: picture that is a device", "`/dev/zero`", line("/dev/zero")),
        ("captions: picture that is a pipe", "`mkfifo pipe.jpg`", line("pipe.jpg")),
        ("captions: picture that is a folder", "`..`", line("..")),
        (
            "captions: one picture by two names",
            "`a.jpg` and `./a.jpg`",
            line("images/cats/one.jpg") + &line("./images//cats/one.jpg"),
        ),
        ("captions: line without end", "1 MiB without a line feed", "x".repeat(1 << 20)),
        ("captions: deep line", "100,000 `[`", "[".repeat(100_000)),
        (
            "captions: words for the terminal",
            "an escape and a line feed in a path",
            line("\\u001b[2J\\nerror: none"),
        ),
        ("captions: NUL in a path", "`a\\u0000b`", line("a\\u0000b")),
        ("captions: half a character", "a lone surrogate", line("\\ud800")),
    ];
    for (attack, made, text) in captions {
        let home = home(CAPTIONS);
        pipe(&home.path().join("pipe.jpg"));
        home.write("captions.jsonl", text);
        rows.add(attack, made, &Seen::of(&home, &run(&home, &["check", "eval.yaml"])));
    }
    for (attack, dataset, file, bytes) in [
        ("captions: large file", CAPTIONS, "captions.jsonl", (2 << 30) + 1),
        ("class list: large file", CLASSES, "classes.json", (64 << 20) + 1),
    ] {
        let home = home(dataset);
        sparse(&home.path().join(file), bytes);
        let made = format!("{} MiB and a byte, sparse", bytes >> 20);
        rows.add(attack, &made, &Seen::of(&home, &run(&home, &["check", "eval.yaml"])));
    }
    let home_of_pipe = home(CAPTIONS);
    pipe(&home_of_pipe.path().join("captions.jsonl"));
    let seen = Seen::of(&home_of_pipe, &run(&home_of_pipe, &["check", "eval.yaml"]));
    rows.add("captions: file that is a pipe", "`mkfifo captions.jsonl`; nobody writes", &seen);

    let class = |name: &str| format!(r#"{{"classes": [{{"id": 0, "name": "{name}"}}]}}"#);
    for (attack, made, text) in [
        ("class list: folder that climbs out", "`../../etc`", class("../../etc")),
        (
            "class list: words for the terminal",
            "an escape and a line feed in a name",
            class("\\u001b[2J\\nerror: none/"),
        ),
        (
            "class list: id without end",
            "2^64",
            class("cats").replace(": 0", ": 18446744073709551616"),
        ),
        (
            "class list: template with many places",
            "`{}{}{}`",
            class("cats").replace("]}", r#"], "templates": ["{}{}{}"]}"#),
        ),
    ] {
        let home = home(CLASSES);
        home.write("classes.json", text);
        let outcome = run(&home, &["check", "eval.yaml"]);
        rows.add(attack, made, &Seen::with(&home, &outcome, "classes.json: "));
    }

    let home = home(IMAGES);
    let root = format!("data={}/images", home.path().display());
    fs::create_dir(home.path().join("private")).unwrap();
    symlink("../private", home.path().join("images/out")).unwrap();
    for (attack, path) in [
        ("path that climbs out of its data root", "data:../private"),
        ("path whose link leaves its data root", "data:out"),
        ("absolute path below a data root", "data:/etc"),
        ("data root that is not there", "models:x"),
    ] {
        let dataset = format!("{{format: imagefolder, path: '{path}'}}");
        home.write("eval.yaml", evaluation(&tiny_clip(), &dataset));
        let outcome = run(&home, &["check", "eval.yaml", "--data-root", &root]);
        rows.add(attack, &format!("`{path}`"), &Seen::of(&home, &outcome));
    }
}

fn home(dataset: &str) -> Home {
    let home = Home::default();
    good_image(&home);
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset));
    home
}
