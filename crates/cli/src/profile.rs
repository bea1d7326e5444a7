//! `orchestrator profile`, and `--profile` of `submit`: where the bytes of each tower go.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use orchestrator_ledger::{ComponentProfile, PROFILE_SCHEMA, Profile};
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_report::{profile_json, profile_svg, profile_text};
use orchestrator_spec::MemoryTerms;
use orchestrator_types::{ByteCount, Component, Precision};

use crate::{
    args,
    evaluation::{self, Checked},
    executor::{self, NoAnswer},
    exit::{Exit, Failure},
    facts, folder, local,
    plan::tight,
    print_line, say, settings,
};

/// Profiles the towers of an evaluation and writes the result into a folder of its own.
pub(crate) fn profile(arguments: &args::Profile) -> Result<Exit, Failure> {
    let checked = evaluation::load(&arguments.evaluation)?;
    checked.warn();
    let output = &arguments.output.output;
    folder::probe(output).map_err(Failure::usage)?;
    let inventory = local::inventory(1, &arguments.device.device)?;
    let profile = measure(&executor::program()?, &checked, &inventory)?;
    settings::remember(&profile, &checked);
    let folder = create(output, &profile.name)?;
    write(&profile, &folder)?;
    let shown = folder.display();
    if arguments.output.json {
        say(format_args!("written to {shown}"));
        return print_line(profile_json(&profile).trim_end());
    }
    print_line(&profile_text(&profile))?;
    print_line(&shown.to_string())
}

/// Every tower of every model in every precision of the sweep, on the first slice.
pub(crate) fn measure(
    program: &Path,
    checked: &Checked,
    inventory: &Inventory,
) -> Result<Profile, Failure> {
    let offer = inventory.slices.first().context("there is no slice to profile on")?;
    let towers = towers(checked);
    let mut components = Vec::with_capacity(towers.len());
    for (index, tower) in towers.iter().enumerate() {
        say(format_args!("profiling {}/{}: {tower} on {}", index + 1, towers.len(), offer.device));
        let folder = facts::place(tower.model, &checked.base, &checked.data);
        let folder = folder.map_err(|error| anyhow!(error))?;
        let arguments = tower.arguments(folder, offer, &checked.evaluation.memory);
        let answer = executor::ask_aloud::<ComponentProfile>(program, &arguments);
        let answer =
            answer.map_err(|error| refused(tower, error, checked.evaluation.memory.quota))?;
        // The program knows the folder, the user the path that eval.yaml names.
        components.push(ComponentProfile { model: tower.model.to_owned(), ..answer });
    }
    let name = checked.evaluation.name.clone();
    Ok(Profile { schema: PROFILE_SCHEMA.to_owned(), name, components })
}

fn refused(tower: &Tower<'_>, error: NoAnswer, asked: Option<ByteCount>) -> Failure {
    let what = format!("failed to profile {tower}");
    match error {
        NoAnswer::DoesNotFit(error) => {
            let failure = Failure::new(Exit::DoesNotFit, error.context(what));
            asked.into_iter().fold(failure, |failure, quota| failure.advise(tight(quota)))
        }
        NoAnswer::Failed(error) => Failure::internal(error.context(what)),
    }
}

/// Writes `profile.json`, `profile.svg` and `profile.txt`.
pub(crate) fn write(profile: &Profile, folder: &Path) -> anyhow::Result<()> {
    let files = [
        ("profile.json", profile_json(profile)),
        ("profile.svg", profile_svg(profile)),
        ("profile.txt", format!("{}\n", profile_text(profile))),
    ];
    for (name, content) in files {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// What one call of the program is about.
#[derive(Debug, PartialEq, Eq)]
struct Tower<'a> {
    /// As eval.yaml names it.
    model: &'a str,
    precision: Precision,
    component: Component,
}

impl std::fmt::Display for Tower<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.model, self.component, self.precision)
    }
}

/// In the order of trials, text tower first.
fn towers(checked: &Checked) -> Vec<Tower<'_>> {
    let mut towers = Vec::new();
    for trial in checked.evaluation.trials() {
        let model = checked.evaluation.models[trial.model].path.as_str();
        for component in [Component::Text, Component::Vision] {
            let tower = Tower { model, precision: trial.precision, component };
            if !towers.contains(&tower) {
                towers.push(tower);
            }
        }
    }
    towers
}

impl Tower<'_> {
    fn arguments(&self, folder: PathBuf, offer: &SliceOffer, terms: &MemoryTerms) -> Vec<PathBuf> {
        let quota = terms.quota.map_or(offer.memory_bytes, |quota| quota.min(offer.memory_bytes));
        let mut arguments = vec!["profile".into(), "--model".into(), folder];
        let values = [
            ("--component", self.component.to_string()),
            ("--precision", self.precision.to_string()),
            ("--device", offer.device.to_string()),
            ("--quota", quota.as_u64().to_string()),
        ];
        let allocator =
            terms.allocator.iter().map(|settings| ("--allocator", settings.to_string()));
        for (flag, value) in values.into_iter().chain(allocator) {
            arguments.extend([PathBuf::from(flag), value.into()]);
        }
        arguments
    }
}

/// A new folder `output/<name>-profile-<moment>`.
fn create(output: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let moment = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let stem = format!("{}-profile-{moment}", slug(name));
    let names = (1..).map(|number| match number {
        1 => stem.clone(),
        more => format!("{stem}-{more}"),
    });
    for name in names {
        let folder = output.join(name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => {
                made.with_context(|| format!("failed to create {}", folder.display()))?;
                return Ok(folder);
            }
        }
    }
    unreachable!("there are more names than folders")
}

/// A title as part of a file's name: `tiny-clip on emoji` → `tiny-clip-on-emoji`.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || c == '.' { c } else { '-' };
    let dashed: String = name.to_lowercase().chars().map(plain).collect();
    let parts = dashed.split(['-', '.']).filter(|part| !part.is_empty());
    let joined = parts.collect::<Vec<_>>().join("-");
    let short: String = joined.chars().take(40).collect();
    if short.is_empty() { "evaluation".to_owned() } else { short }
}

#[cfg(test)]
pub(crate) mod tests {
    use orchestrator_types::DeviceId;

    use super::*;
    use crate::{args::EvaluationFile, executor::tests::stand_in};

    pub(crate) fn checked(overrides: &[&str]) -> Checked {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/eval.yaml");
        let overrides = overrides.iter().map(|set| set.parse().unwrap()).collect();
        evaluation::load(&EvaluationFile { file, overrides, data: args::Data::default() })
            .map_err(|_| ())
            .unwrap()
    }

    pub(crate) fn inventory() -> Inventory {
        let offer = SliceOffer {
            id: "host.0".parse().unwrap(),
            node: "host".parse().unwrap(),
            device: DeviceId::Cpu,
            threads: 2,
            memory_bytes: ByteCount::gib(1),
        };
        Inventory { slices: vec![offer] }
    }

    #[test]
    fn every_tower_is_asked_for_once_within_the_tighter_ceiling() {
        let set = ["sweep.precision=[fp32, bf16]", "sweep.batch=[1, 2]", "memory.quota=2 GiB"];
        let checked = checked(&[&set[..], &["memory.allocator=backend:native"]].concat());
        let names: Vec<String> = towers(&checked).iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(names.join("\n"), @r"
        models/tiny-clip text fp32
        models/tiny-clip vision fp32
        models/tiny-clip text bf16
        models/tiny-clip vision bf16
        ");
        let terms = &checked.evaluation.memory;
        let arguments = towers(&checked)[3].arguments(
            "/base/models/tiny-clip".into(),
            &inventory().slices[0],
            terms,
        );
        let arguments: Vec<_> = arguments.iter().map(|text| text.to_str().unwrap()).collect();
        insta::assert_snapshot!(arguments.join(" "), @"profile --model /base/models/tiny-clip --component vision --precision bf16 --device cpu --quota 1073741824 --allocator backend:native");
    }

    #[test]
    fn a_profile_is_measured_and_written() {
        let profile = measure(&stand_in(), &checked(&[]), &inventory()).map_err(|_| ()).unwrap();
        assert_eq!(profile.components.len(), 2);
        assert!(profile.components.iter().all(|part| part.model == "models/tiny-clip"));
        let home = tempfile::tempdir().unwrap();
        let folders = [(); 2].map(|()| create(home.path(), &profile.name).unwrap());
        assert_ne!(folders[0], folders[1]);
        write(&profile, &folders[0]).unwrap();
        let text = fs::read_to_string(folders[0].join("profile.json")).unwrap();
        assert_eq!(orchestrator_report::read_profile(&text).unwrap(), profile);
        for name in ["profile.svg", "profile.txt"] {
            assert!(folders[0].join(name).metadata().unwrap().len() > 100, "{name}");
        }
    }

    #[test]
    fn a_tower_that_does_not_fit_is_exit_code_5() {
        let checked = checked(&["sweep.precision=[bf16]"]);
        let failure = measure(&stand_in(), &checked, &inventory()).unwrap_err();
        assert_eq!(failure.exit, Exit::DoesNotFit);
        insta::assert_snapshot!(failure.text(), @"failed to profile models/tiny-clip text bf16: vision never fits: 12.00 MiB of weights, quota 8.00 MiB");
    }

    #[test]
    fn titles_become_names_of_folders() {
        assert_eq!(slug("tiny-clip on emoji"), "tiny-clip-on-emoji");
        assert_eq!(slug("../../etc: Übung 2.5"), "etc-übung-2-5");
        assert_eq!(slug("…"), "evaluation");
        assert_eq!(slug(&"x".repeat(99)).len(), 40);
    }
}
