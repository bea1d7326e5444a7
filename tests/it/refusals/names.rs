//! Names of others in reports, tables and logs.

use std::fs;

use orchestrator_tests::Home;

use super::{IMAGES, Rows, Seen, evaluation, good_image, run, tiny_clip};

pub(super) fn attack(rows: &mut Rows) {
    let cases = [
        (
            "file name that is markup",
            "`<img src=x onerror=alert(1)>.jpg`",
            "<img src=x onerror=alert(1)>.jpg",
        ),
        ("file name that ends a table's row", "`a | b | c.jpg`", "a | b | c.jpg"),
        (
            "file name that drives a terminal",
            "`ESC [2J ESC ]0;owned BEL`.jpg",
            "\u{1b}[2J\u{1b}]0;owned\u{7}.jpg",
        ),
        (
            "file name with lines of its own",
            "a line feed, then `error: none`",
            "a\nerror: none.jpg",
        ),
        (
            "file name that turns its direction",
            "U+202E before `gpj.exe`.jpg",
            "\u{202e}gpj.exe.jpg",
        ),
        ("link that is code", "`[x](javascript:alert(1)).jpg`", "[x](javascript:alert(1)).jpg"),
    ];
    for (attack, made, name) in cases {
        let home = Home::default();
        good_image(&home);
        // No picture, so that its name is in every list of problems.
        home.write(&format!("images/<b>/{name}"), "x");
        home.write("eval.yaml", evaluation(&tiny_clip(), IMAGES));
        let outcome = run(&home, &["submit", "eval.yaml"]);
        let seen = Seen::with(&home, &outcome, "quarantined: <b>");
        let folder = outcome.stdout.lines().last().unwrap();
        let report = fs::read_to_string(home.path().join(folder).join("report.md")).unwrap();
        harmless(&outcome.stdout);
        harmless(&outcome.stderr);
        harmless(&report);
        let row = report.lines().find(|line| line.starts_with("| set |") && line.contains("b\\>"));
        let row = row.unwrap_or_else(|| panic!("{report}"));
        let bars = row.match_indices('|').filter(|(at, _)| !row[..*at].ends_with('\\')).count();
        assert_eq!(bars, 4, "three cells: {row}");
        for opened in ["<", "["] {
            let open = row.match_indices(opened).filter(|(at, _)| !row[..*at].ends_with('\\'));
            assert_eq!(open.count(), 0, "{row}");
        }
        let seen = Seen { answer: "exit 4, shown as text".to_owned(), ..seen };
        rows.add(attack, made, &seen.and("report.md has it in one cell, escaped"));
    }
}

fn harmless(text: &str) {
    let steers = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(steers), "{text:?}");
    assert!(text.lines().all(|line| !line.starts_with("error: none")), "{text}");
}
