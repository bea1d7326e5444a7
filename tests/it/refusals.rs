//! Attacks on the real binaries, with real hostile files and messages, and what is said to each:
//! `tests/REFUSALS.md`, which is compared with what happens and so never stale.
//!
//! To add an attack, add a line to a section; to add a section, write `fn(&mut Rows)` and name it in
//! [`SECTIONS`]. `REFUSALS=write` writes the table anew.

mod callers;
mod datasets;
mod disks;
mod evaluations;
mod flags;
mod images;
mod messages;
mod models;
mod names;
mod workers;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use orchestrator_tests::{Home, Outcome, data};

/// A title, and what adds its rows.
type Section = (&'static str, fn(&mut Rows));

const SECTIONS: &[Section] = &[
    ("Evaluation files", evaluations::attack),
    ("Model folders", models::attack),
    ("Datasets", datasets::attack),
    ("Images", images::attack),
    ("Names in reports and on terminals", names::attack),
    ("Paths on a worker", workers::attack),
    ("Callers without a right", callers::attack),
    ("Messages to a coordinator", messages::attack),
    ("Disks", disks::attack),
    ("Command lines", flags::attack),
];

const HEAD: &str = "# What is refused, and how\n\n\
Made by `REFUSALS=write cargo nextest run --workspace -E 'test(every_attack_is_refused)'` with the real binaries; the same \
test compares it with what happens. *Afterwards*: a command that ends by itself has an exit code, no panic and no signal; a \
service is asked again. The first line of a message that says why is shown. HOME is the user's folder, DATA `tests/data`.\n";

/// What happened.
pub(crate) struct Seen {
    /// Exit code, or status of a call.
    pub(crate) answer: String,
    /// The first line that says why.
    pub(crate) said: String,
    /// What shows that life goes on.
    pub(crate) afterwards: String,
}

/// The rows of a section.
#[derive(Default)]
pub(crate) struct Rows(Vec<String>);

impl Rows {
    /// One attack: what it is and how it is made, and what happened.
    pub(crate) fn add(&mut self, attack: &str, made: &str, seen: &Seen) {
        let Seen { answer, said, afterwards } = seen;
        let cells = [attack, made, answer, said, afterwards].map(cell);
        self.0.push(format!("| {} |", cells.join(" | ")));
    }

    /// An attack that cannot be made here: its row stays as it was committed.
    pub(crate) fn skip(&mut self, attack: &str, why: &str) {
        eprintln!("SKIPPED: {attack}: {why}");
        let start = format!("| {} |", cell(attack));
        let committed = fs::read_to_string(file()).unwrap_or_default();
        let row = committed.lines().find(|row| row.starts_with(&start)).unwrap_or(&start);
        self.0.push(row.to_owned());
    }
}

/// Text inside a cell: one line, and nothing that ends it or opens a tag.
fn cell(text: &str) -> String {
    let short: String = text.chars().take(400).collect();
    assert!(!short.contains(char::is_control), "it could drive a terminal: {short:?}");
    // Between backticks everything but a bar is text already.
    let pieces: Vec<&str> = short.split('`').collect();
    let escape = |(number, piece): (usize, &&str)| {
        if number % 2 == 1 && pieces.len() % 2 == 1 {
            return piece.replace('|', "\\|");
        }
        let special = |c| matches!(c, '\\' | '|' | '<' | '*' | '[' | '_');
        piece.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
    };
    pieces.iter().enumerate().map(escape).collect::<Vec<String>>().join("`")
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("REFUSALS.md")
}

impl Seen {
    /// The end of a command, which is refused.
    pub(crate) fn of(home: &Home, outcome: &Outcome) -> Self {
        let code = outcome.code.unwrap_or_else(|| panic!("ended by a signal: {outcome:#?}"));
        assert!(code != 0 && code != 101, "{outcome:#?}");
        for text in [&outcome.stderr, &outcome.stdout] {
            assert!(!text.contains("panicked"), "{outcome:#?}");
            let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
            assert!(!text.contains(steers), "it could drive a terminal: {outcome:#?}");
        }
        Self {
            answer: format!("exit {code}"),
            said: if code == 4 { String::new() } else { reason(&stable(home, &outcome.stderr)) },
            afterwards: "ended by itself".to_owned(),
        }
    }

    /// The same, with the line that contains `text`.
    pub(crate) fn with(home: &Home, outcome: &Outcome, text: &str) -> Self {
        let mut lines = outcome.stderr.lines();
        let line = lines.find(|line| line.contains(text)).unwrap_or_else(|| panic!("{outcome:#?}"));
        Self { said: stable(home, line.trim()), ..Self::of(home, outcome) }
    }

    pub(crate) fn and(self, afterwards: &str) -> Self {
        Self { afterwards: afterwards.to_owned(), ..self }
    }
}

/// The first line that says why: the error, or what its list begins with; and what to do, if that
/// follows.
fn reason(text: &str) -> String {
    let is_headline = |line: &str| line.ends_with(" problem") || line.ends_with(" problems");
    let errors = text.lines().skip_while(|line| !line.starts_with("error: "));
    let mut lines = errors.filter(|line| !line.trim().is_empty() && !is_headline(line));
    let first = lines.next().unwrap_or_else(|| panic!("no error in {text}"));
    let advice = lines.next().filter(|line| line.starts_with("make room"));
    [Some(first), advice].into_iter().flatten().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Replaces what differs from machine to machine.
pub(crate) fn stable(home: &Home, text: &str) -> String {
    let text = text.replace(home.path().to_str().unwrap(), "HOME");
    let text = text.replace(data().to_str().unwrap(), "DATA");
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let text = text.replace(&format!("slice {host}."), "slice HOST.");
    // The name of a temporary folder.
    text.lines()
        .map(|line| line.split(" at path ").next().unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Runs `orchestrator` to its end. An attack that is not refused must not hold the table up.
pub(crate) fn run(home: &Home, arguments: &[&str]) -> Outcome {
    let mut child = home.start(arguments);
    let deadline = Instant::now() + Duration::from_mins(2);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{arguments:?} is not refused: {:#?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Outcome::of(child.wait_with_output().unwrap())
}

/// A link to, or copy of, everything in the model but `file`, which is `content`; in `model/`.
pub(crate) fn model_with(home: &Home, file: &str, content: &[u8]) {
    for entry in fs::read_dir(data().join("models/tiny-clip")).unwrap() {
        let entry = entry.unwrap();
        let name = format!("model/{}", entry.file_name().to_str().unwrap());
        home.write(&name, fs::read(entry.path()).unwrap());
    }
    home.write(&format!("model/{file}"), content);
}

/// An evaluation of `model` on `dataset`, by a zero-shot task or retrieval.
pub(crate) fn evaluation(model: &str, dataset: &str) -> String {
    let task = if dataset.contains("captions") {
        "retrieval: {dataset: set, recall_at: [1]}"
    } else {
        "zero_shot: {dataset: set, top_k: [1]}"
    };
    format!(
        "version: 1\nname: attacked\nmodels: [{{path: {model}}}]\ndatasets:\n  set: {dataset}\n\
         tasks: [{{{task}}}]\n"
    )
}

pub(crate) fn tiny_clip() -> String {
    data().join("models/tiny-clip").display().to_string()
}

/// A folder `images` with one good picture in one class.
pub(crate) fn good_image(home: &Home) {
    home.write("images/cats/one.jpg", fs::read(data().join("edge/gray.jpg")).unwrap());
}

pub(crate) const IMAGES: &str = "{format: imagefolder, path: images}";

/// Makes a named pipe.
pub(crate) fn pipe(path: &Path) {
    drop(fs::remove_file(path));
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

/// A file of this size that takes no place on the disk.
pub(crate) fn sparse(path: &Path, bytes: u64) {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn every_attack_is_refused_as_the_table_says() {
    let queue = Mutex::new(SECTIONS.iter().enumerate().rev().collect::<Vec<_>>());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().pop();
                    let Some((number, (title, attack))) = next else { return };
                    let mut rows = Rows::default();
                    attack(&mut rows);
                    eprintln!("{title}: done");
                    done.lock().unwrap().push((number, title, rows.0));
                }
            });
        }
    });
    let mut sections = done.into_inner().unwrap();
    sections.sort_unstable();
    let mut found = HEAD.to_owned();
    for (_, title, rows) in sections {
        let head = "| attack | how it is made | answer | what is said | afterwards |\n\
                    | --- | --- | --- | --- | --- |";
        found = format!("{found}\n## {title}\n\n{head}\n{}\n", rows.join("\n"));
    }
    if env::var_os("REFUSALS").is_some_and(|how| how == "write") {
        fs::write(file(), &found).unwrap();
    }
    let committed = fs::read_to_string(file()).unwrap_or_default();
    let differ: Vec<String> = committed
        .lines()
        .filter(|line| !found.lines().any(|other| other == *line))
        .map(|line| format!("- {line}"))
        .chain(
            found
                .lines()
                .filter(|line| !committed.lines().any(|other| other == *line))
                .map(|line| format!("+ {line}")),
        )
        .collect();
    assert!(
        differ.is_empty() && found == committed,
        "tests/REFUSALS.md differs from what happens; if that is meant, run this test with \
         REFUSALS=write\n{}",
        differ.join("\n")
    );
}
