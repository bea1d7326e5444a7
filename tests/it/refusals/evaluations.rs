//! Hostile evaluation files, before any key of them is believed.

use orchestrator_tests::Home;

use super::{IMAGES, Rows, Seen, evaluation, good_image, pipe, run, sparse, tiny_clip};

pub(super) fn attack(rows: &mut Rows) {
    let home = Home::default();
    good_image(&home);
    let sound = evaluation(&tiny_clip(), IMAGES);
    let with = |from: &str, to: &str| sound.replace(from, to);
    let laugh = |n: i32| format!("l{n}: &l{n} [{}]\n", format!("*l{}, ", n - 1).repeat(9));
    let laughs = (1..=9).map(laugh).collect::<Vec<_>>().concat();
    let bomb = format!("l0: &l0 [lol]\n{laughs}{sound}");
    let deep = format!("{sound}memory: {}{}", "[".repeat(33), "]".repeat(33));
    let cases = [
        ("YAML bomb", "nine lists, each nine aliases of the one before", bomb),
        ("alias", "`&m` and `*m`", with("attacked", "&m attacked") + "memory: *m\n"),
        ("merge key", "`<<: {}`", format!("{sound}<<: {{}}\n")),
        ("tag", "`!!python/object`", with("attacked", "!!python/object:os.system attacked")),
        ("deep nesting", "33 lists inside each other", deep),
        ("deep nesting, no end", "100,000 `[`", "[".repeat(100_000)),
        ("double key", "`name` twice", format!("{sound}name: other\n")),
        (
            "unknown key",
            "`allow_code_execution: true`",
            format!("{sound}allow_code_execution: true\n"),
        ),
        ("second document", "`---`", format!("{sound}---\n{sound}")),
        ("control character", "an escape in the name", with("attacked", "\u{1b}[2Jattacked")),
        ("large file", "257 KiB of comments", format!("{}{sound}", "# \n".repeat(87_723))),
        (
            "address of a metadata service",
            "`http://169.254.169.254/` as a model",
            evaluation("http://169.254.169.254/latest/meta-data", IMAGES),
        ),
        (
            "address as dataset",
            "`https://…` as captions",
            evaluation(&tiny_clip(), "{format: captions, path: 'https://example.org/c.jsonl'}"),
        ),
        (
            "another scheme",
            "`file:///etc/passwd` as a model",
            evaluation("file:///etc/passwd", IMAGES),
        ),
        (
            "sweep without end",
            "10,001 trials",
            format!(
                "{sound}sweep: {{batch: [{}], precision: [fp32, bf16, fp16]}}\n",
                (1..=3_334).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
            ),
        ),
    ];
    for (attack, made, text) in cases {
        home.write("eval.yaml", text);
        rows.add(attack, made, &Seen::of(&home, &run(&home, &["check", "eval.yaml"])));
    }
    home.write("eval.yaml", b"version: 1\nname: \xff\xfe\n");
    rows.add("not UTF-8", "bytes ff fe", &Seen::of(&home, &run(&home, &["check", "eval.yaml"])));
    sparse(&home.path().join("eval.yaml"), 1 << 40);
    let seen = Seen::of(&home, &run(&home, &["check", "eval.yaml"]));
    rows.add("huge file", "a terabyte, sparse", &seen);
    rows.add("endless file", "`/dev/zero`", &Seen::of(&home, &run(&home, &["check", "/dev/zero"])));
    pipe(&home.path().join("classes.json"));
    let dataset = "{format: imagefolder, path: images, classes: classes.json}";
    home.write("eval.yaml", evaluation(&tiny_clip(), dataset));
    let seen = Seen::of(&home, &run(&home, &["check", "eval.yaml"]));
    rows.add("class list that is a pipe", "`mkfifo classes.json`; nobody writes", &seen);
}
