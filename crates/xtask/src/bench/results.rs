//! tests/bench/RESULTS.md: each benchmark's section, replaced by its own run alone.

use super::python::output;
use crate::checkout::Checkout;
use anyhow::{Context, Result};
use std::process::Command;
use std::{fs, thread};

/// Replaces what stands under `heading`, or adds it at the end.
pub(super) fn replace(checkout: &Checkout, heading: &str, body: &str) -> Result<()> {
    let path = checkout.root().join("tests/bench/RESULTS.md");
    let text = fs::read_to_string(&path).context("cannot read RESULTS.md")?;
    fs::write(&path, replaced(&text, heading, body)).context("cannot write RESULTS.md")
}

fn replaced(text: &str, heading: &str, body: &str) -> String {
    let section = format!("{heading}\n\n{}\n", body.trim());
    let marked = format!("\n{heading}\n");
    let Some(start) = text.find(&marked).map(|start| start + 1) else {
        return format!("{}\n\n{section}", text.trim_end());
    };
    let end = text[start..].find("\n## ").map(|length| start + length);
    let rest = end.map_or("", |end| &text[end..]);
    format!("{}{section}{rest}", &text[..start])
}

/// When and on what.
pub(super) fn machine() -> Result<String> {
    let date = output(Command::new("date").args(["-u", "+%F"]))?;
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let name = name.unwrap_or("processor without a name");
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(format!("{}, {name}, {cores} cores", date.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_its_neighbours_stay() {
        let text = "# Measured\n\n## a\n\nold\n\n## a b\n\nkept\n";
        let new = "# Measured\n\n## a\n\nnew\n\n## a b\n\nkept\n";
        assert_eq!(replaced(text, "## a", "new\n"), new);
        let added = "# Measured\n\n## a\n\nold\n\n## a b\n\nkept\n\n## c\n\nnew\n";
        assert_eq!(replaced(text, "## c", "new"), added);
        assert_eq!(replaced(added, "## c", "new"), added);
    }
}
