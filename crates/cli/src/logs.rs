//! Logs: on stderr, errors only unless asked for.

use std::{env, io, io::IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::{args::service::LogFormat, say};

const VARIABLE: &str = "ORCHESTRATOR_LOG";

/// Starts the log of a command, which the user reads beside its output: errors only unless asked.
pub(crate) fn start(verbose: u8) {
    begin(verbose, LogFormat::Text);
}

/// Starts the log of a service, which is all that is left of it later: what happens is told.
pub(crate) fn start_service(verbose: u8, format: LogFormat) {
    begin(verbose.saturating_add(1), format);
}

/// A filter in `ORCHESTRATOR_LOG` is stronger than `-v`.
fn begin(verbose: u8, format: LogFormat) {
    let variable = env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned());
    let (filter, complaint) = filter(verbose, variable.as_deref());
    if let Some(complaint) = complaint {
        say(format_args!("warning: {complaint}"));
    }
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours(io::stderr().is_terminal(), env::var_os("NO_COLOR").as_deref()))
        .with_writer(io::stderr)
        // It would tell with `eprintln!`, which panics when stderr is closed.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).with_ansi(false).init(),
    }
}

/// What is logged, and what is wrong with the variable.
fn filter(verbose: u8, variable: Option<&str>) -> (EnvFilter, Option<String>) {
    let default = match verbose {
        0 => "error",
        1 => "info",
        // Libraries below tell of every frame that they send.
        2 => "info,orchestrator=debug",
        _ => "debug",
    };
    match variable.filter(|text| !text.is_empty()).map(EnvFilter::try_new) {
        None => (EnvFilter::new(default), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => {
            let text = variable.unwrap_or_default();
            let complaint = format!(
                "{VARIABLE}={text:?} is no filter ({error}); write for example `info`, or \
                 `error,orchestrator_worker=debug`"
            );
            (EnvFilter::new(default), Some(complaint))
        }
    }
}

/// Escapes for colours go to terminals only, and not where `NO_COLOR` holds anything.
fn colours(terminal: bool, no_color: Option<&std::ffi::OsStr>) -> bool {
    terminal && no_color.is_none_or(std::ffi::OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_stronger_than_the_flag_and_told_if_wrong() {
        let shown = |verbose, variable| {
            let (filter, complaint) = filter(verbose, variable);
            (filter.to_string(), complaint.is_some())
        };
        assert_eq!(shown(0, None), ("error".to_owned(), false));
        assert_eq!(shown(2, Some("")), ("orchestrator=debug,info".to_owned(), false));
        assert_eq!(shown(3, None), ("debug".to_owned(), false));
        assert_eq!(shown(2, Some("warn")), ("warn".to_owned(), false));
        assert_eq!(shown(1, Some("worker=lots")), ("info".to_owned(), true));
    }

    #[test]
    fn only_terminals_see_colours() {
        assert!(colours(true, None));
        assert!(colours(true, Some("".as_ref())));
        assert!(!colours(true, Some("1".as_ref())));
        assert!(!colours(false, None));
    }
}
