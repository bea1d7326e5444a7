//! Allocator settings in the environment. A process of its own, and one test: it sets variables.

use std::env;

use orchestrator_torch::{allocator, cuda};

const VARIABLE: &str = "PYTORCH_ALLOC_CONF";

fn set(value: &str) {
    // SAFETY: this process has one test, and no other thread reads the environment.
    unsafe { env::set_var(VARIABLE, value) }
}

#[test]
fn a_wrong_variable_is_an_error_and_one_that_would_last_is_not_passed_over() {
    // SAFETY: as above.
    unsafe { env::remove_var("PYTORCH_CUDA_ALLOC_CONF") };
    set("expandable_segment:True");
    let wrong = "libtorch: environment variable PYTORCH_ALLOC_CONF: there is no allocator setting \
                 `expandable_segment`; did you mean `expandable_segments`?";
    assert_eq!(cuda::load().unwrap_err().to_string(), wrong);
    assert_eq!(allocator::apply(&allocator::Settings::default()).unwrap_err().to_string(), wrong);

    set("expandable_segments:True");
    let found = allocator::environment().unwrap().unwrap();
    assert_eq!(found.to_string(), "expandable_segments:True");
    allocator::apply(&allocator::Settings::default()).unwrap();

    set("pinned_reserve_segment_size_mb:4");
    assert_eq!(
        allocator::apply(&allocator::Settings::default()).unwrap_err().to_string(),
        "libtorch: pinned_reserve_segment_size_mb:4 comes from the environment and cannot be taken \
         back; unset it there or put it into the settings"
    );
    allocator::apply(&allocator::environment().unwrap().unwrap()).unwrap();
}
