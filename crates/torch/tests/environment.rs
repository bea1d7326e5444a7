//! Allocator settings in the environment: each test runs itself again in a process that has them.

use std::{env, process::Command};

use orchestrator_torch::{allocator, cuda};
use orchestrator_types::AllocatorSettings;

const VARIABLE: &str = "PYTORCH_ALLOC_CONF";

/// Whether this is the process that has the variable. Elsewhere runs the test in such a one.
fn has_variable(test: &str, value: &str) -> bool {
    if env::var(VARIABLE).as_deref() == Ok(value) {
        return true;
    }
    let output = Command::new(env::current_exe().expect("this test is a program"))
        .args(["--exact", test, "--nocapture"])
        .env_remove("PYTORCH_CUDA_ALLOC_CONF")
        .env(VARIABLE, value)
        .output()
        .expect("the test runs again");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    false
}

#[test]
fn a_wrong_setting_is_named_before_libtorch_ends_the_process_over_it() {
    let test = "a_wrong_setting_is_named_before_libtorch_ends_the_process_over_it";
    if !has_variable(test, "expandable_segment:True") {
        return;
    }
    let wrong = "libtorch: environment variable PYTORCH_ALLOC_CONF: the allocator has no setting \
                 `expandable_segment`; did you mean `expandable_segments`?";
    assert_eq!(cuda::load().unwrap_err().to_string(), wrong);
    assert_eq!(allocator::apply(&AllocatorSettings::default()).unwrap_err().to_string(), wrong);
}

#[test]
fn a_setting_that_would_last_is_not_passed_over() {
    let test = "a_setting_that_would_last_is_not_passed_over";
    if !has_variable(test, "pinned_reserve_segment_size_mb:4,expandable_segments:True") {
        return;
    }
    assert_eq!(
        allocator::apply(&AllocatorSettings::default()).unwrap_err().to_string(),
        "libtorch: pinned_reserve_segment_size_mb:4 comes from the environment and cannot be taken \
         back; unset it there or put it into the settings"
    );
    allocator::apply(&"pinned_reserve_segment_size_mb:4".parse().unwrap()).unwrap();
    allocator::apply(&allocator::environment().unwrap().unwrap()).unwrap();
}
