//! Values that the chart must refuse, and what it says: a snapshot, so that each message is read.

use super::tools::Rendered;
use crate::checkout::Checkout;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;

const SNAPSHOT: &str = "deploy/helm/orchestrator/ci/refused/messages.txt";

pub(super) fn check(checkout: &Checkout, rendered: &Rendered, update: bool) -> Result<Vec<String>> {
    let taken = rendered.refused.iter().filter(|(_, message)| message.is_none());
    let mut found: Vec<String> = taken
        .map(|(name, _)| format!("ci/refused/{name}.yaml: the chart takes these values"))
        .collect();
    let (path, said) = (checkout.root().join(SNAPSHOT), messages(rendered));
    if update {
        fs::write(&path, &said).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    found.extend(changed(&kept, &said));
    Ok(found)
}

fn messages(rendered: &Rendered) -> String {
    let mut text = String::new();
    for (name, message) in &rendered.refused {
        let lines = message.as_deref().unwrap_or("taken").lines().map(str::trim_end);
        // Where in the templates a check stands is nobody's concern.
        let lines =
            lines.filter(|line| !line.is_empty() && !line.starts_with("execution error at"));
        writeln!(text, "## {name}").expect("writing to a string does not fail");
        lines.for_each(|line| writeln!(text, "{line}").expect("as above"));
    }
    text
}

fn changed(kept: &str, said: &str) -> Option<String> {
    if kept == said {
        return None;
    }
    let news = said.lines().filter(|line| !kept.lines().any(|old| old == *line));
    let news: Vec<&str> = news.collect();
    Some(format!(
        "{SNAPSHOT} is not what the chart says now; `cargo xtask manifests --update` writes it. New:\n    {}",
        news.join("\n    ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_message_is_a_change() {
        assert_eq!(changed("## a\nx\n", "## a\nx\n"), None);
        let told = changed("## a\nx\n", "## a\ny\n").unwrap();
        assert!(told.ends_with("New:\n    y"), "{told}");
    }
}
