//! The book's invariants over random histories, over threads, and its messages.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use insta::assert_snapshot;
use orchestrator_types::{Component, Precision};
use proptest::prelude::*;

use super::*;

fn weights() -> Owner {
    Owner::Weights {
        model: "vit-l-14".to_owned(),
        component: Component::Vision,
        precision: Precision::Bf16,
    }
}

const fn activations(rows: u32) -> Owner {
    Owner::Activations { component: Component::Vision, rows }
}

const fn mib(n: u64) -> ByteCount {
    ByteCount::mib(n)
}

#[test]
fn a_lease_returns_its_bytes_when_it_is_dropped() {
    let ledger = Ledger::new(mib(10));
    let lease = ledger.lease(Owner::Texts, mib(4)).unwrap();
    assert_eq!((ledger.held(), ledger.free()), (mib(4), mib(6)));
    assert_eq!((lease.bytes(), lease.owner()), (mib(4), &Owner::Texts));
    drop(lease);
    assert_eq!((ledger.held(), ledger.free(), ledger.peak()), (mib(0), mib(10), mib(4)));
    assert!(ledger.holders().is_empty());
}

#[test]
fn leases_of_one_owner_are_one_holder_and_the_largest_comes_first() {
    let ledger = Ledger::new(mib(10));
    let _kept = [
        ledger.lease(Owner::Texts, mib(2)).unwrap(),
        ledger.lease(Owner::Runtime, mib(3)).unwrap(),
        ledger.lease(Owner::Texts, mib(2)).unwrap(),
    ];
    let holder = |owner, bytes| Holder { owner, bytes };
    assert_eq!(ledger.holders(), [holder(Owner::Texts, mib(4)), holder(Owner::Runtime, mib(3))]);
    assert_eq!(ledger.held_by(|owner| *owner == Owner::Texts), mib(4));
    assert_eq!(ledger.held_by(|_| false), ByteCount::ZERO);
}

#[test]
fn growing_is_all_or_nothing() {
    let ledger = Ledger::new(mib(10));
    let mut lease = ledger.lease(Owner::Texts, mib(2)).unwrap();
    let other = ledger.lease(Owner::ScoreTiles, mib(5)).unwrap();
    assert!(matches!(lease.grow_to(mib(6)), Err(Refusal::NotNow { asked, missing, .. })
        if asked == mib(4) && missing == mib(1)));
    assert!(matches!(lease.grow_to(mib(11)), Err(Refusal::NeverFits { asked, .. })
        if asked == mib(11)));
    assert_eq!(lease.bytes(), mib(2));
    drop(other);
    lease.grow_to(mib(10)).unwrap();
    lease.grow_to(mib(1)).unwrap();
    assert_eq!(lease.bytes(), mib(10));
    lease.shrink_to(mib(3));
    lease.shrink_to(mib(9));
    assert_eq!((lease.bytes(), ledger.held()), (mib(3), mib(3)));
}

#[test]
fn a_quota_lowered_below_what_is_held_refuses_until_enough_came_back() {
    let ledger = Ledger::new(mib(10));
    let mut lease = ledger.lease(weights(), mib(8)).unwrap();
    ledger.set_quota(mib(6));
    assert_eq!((ledger.held(), ledger.free()), (mib(8), mib(0)));
    assert!(matches!(ledger.lease(Owner::Texts, mib(1)), Err(Refusal::NotNow { missing, .. })
        if missing == mib(3)));
    lease.shrink_to(mib(5));
    let _granted = ledger.lease(Owner::Texts, mib(1)).unwrap();
}

#[test]
fn amounts_near_the_largest_number_do_not_wrap() {
    let all = ByteCount::bytes(u64::MAX);
    let ledger = Ledger::new(all);
    let _some = ledger.lease(Owner::Texts, mib(1)).unwrap();
    assert!(matches!(ledger.lease(Owner::Texts, all), Err(Refusal::NotNow { missing, .. })
        if missing == mib(1)));
}

#[test]
fn who_waits_is_served_when_bytes_come_back() {
    let ledger = Ledger::new(mib(10));
    let first = ledger.lease(weights(), mib(8)).unwrap();
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let never = || {
                waits.store(true, Ordering::SeqCst);
                false
            };
            ledger.lease_when_free(activations(8), mib(5), &never).map(|lease| lease.bytes())
        });
        while !waits.load(Ordering::SeqCst) && !waiter.is_finished() {
            thread::yield_now();
        }
        drop(first);
        assert_eq!(waiter.join().unwrap(), Ok(mib(5)));
    });
    assert_eq!(ledger.held(), ByteCount::ZERO);
}

#[test]
fn who_waits_may_give_up_and_is_told_at_once_what_never_fits() {
    let ledger = Ledger::new(mib(10));
    let _first = ledger.lease(weights(), mib(8)).unwrap();
    let looks = Cell::new(0);
    let third = || {
        looks.set(looks.get() + 1);
        // The book may be read while deciding.
        looks.get() == 3 && ledger.free() == mib(2)
    };
    let refusal = ledger.lease_when_free(Owner::Texts, mib(5), &third).unwrap_err();
    assert!(matches!(refusal, Refusal::NotNow { .. }), "{refusal}");
    assert_eq!(looks.get(), 3);
    // Lowered while somebody waits: it can no longer fit.
    let lower = || {
        ledger.set_quota(mib(4));
        false
    };
    let refusal = ledger.lease_when_free(Owner::Texts, mib(5), &lower).unwrap_err();
    assert!(matches!(refusal, Refusal::NeverFits { .. }), "{refusal}");
}

#[test]
fn refusals_say_what_is_missing_who_holds_it_and_what_to_do() {
    let ledger = Ledger::new(ByteCount::gib(2));
    let refused = |owner, bytes| ledger.lease(owner, bytes).unwrap_err().to_string();
    assert_snapshot!(
        refused(weights(), ByteCount::gib(3)),
        @"never fits: weights of vit-l-14 vision bf16 asked for 3.00 GiB, and the slice's quota is 2.00 GiB; 1.00 GiB missing; offer a larger slice, raise its quota, or lower the precision"
    );
    assert_snapshot!(refused(activations(64), mib(2560)), @"never fits: activations of vision, 64 rows asked for 2.50 GiB, and the slice's quota is 2.00 GiB; 512.00 MiB missing; compute fewer rows at once or raise the slice's quota");
    let staging = Owner::Staging { component: Component::Text };
    let _kept = [
        ledger.lease(weights(), mib(900)).unwrap(),
        ledger.lease(Owner::Runtime, mib(600)).unwrap(),
    ];
    assert_snapshot!(refused(activations(64), mib(700)), @"not now: activations of vision, 64 rows asked for 700.00 MiB, and 548.00 MiB of the slice's quota are free; 152.00 MiB missing; held by weights of vit-l-14 vision bf16 (900.00 MiB), device runtime (600.00 MiB); wait until enough is returned, or ask for less");
    let _more = [
        ledger.lease(staging.clone(), mib(10)).unwrap(),
        ledger.lease(Owner::Texts, mib(20)).unwrap(),
        ledger.lease(Owner::ScoreTiles, mib(5)).unwrap(),
        ledger.lease(activations(1), mib(1)).unwrap(),
    ];
    assert_snapshot!(refused(staging, mib(700)), @"not now: staging of text asked for 700.00 MiB, and 512.00 MiB of the slice's quota are free; 188.00 MiB missing; held by weights of vit-l-14 vision bf16 (900.00 MiB), device runtime (600.00 MiB), texts (20.00 MiB), staging of text (10.00 MiB) and 2 more; wait until enough is returned, or ask for less");
    assert_snapshot!(refused(Owner::ScoreTiles, mib(1500)), @"never fits: score tiles asked for 1.46 GiB, and the slice's quota is 2.00 GiB, of which the device's runtime keeps 600.00 MiB; 52.00 MiB missing; score smaller tiles or raise the slice's quota");
    let idle = Ledger::new(mib(1));
    let kept = idle.lease(Owner::Texts, mib(1)).unwrap();
    idle.set_quota(mib(2));
    assert_snapshot!(idle.lease(Owner::ScoreTiles, mib(2)).unwrap_err(), @"not now: score tiles asked for 2.00 MiB, and 1.00 MiB of the slice's quota are free; 1.00 MiB missing; held by texts (1.00 MiB); wait until enough is returned, or ask for less");
    drop(kept);
}

#[test]
fn nobody_is_told_to_wait_for_what_the_runtime_keeps() {
    let ledger = Ledger::new(ByteCount::gib(2));
    let mut runtime = ledger.lease(Owner::Runtime, mib(728)).unwrap();
    let refused = ledger.lease(weights(), mib(1741)).unwrap_err();
    assert_snapshot!(refused, @"never fits: weights of vit-l-14 vision bf16 asked for 1.70 GiB, and the slice's quota is 2.00 GiB, of which the device's runtime keeps 728.00 MiB; 421.00 MiB missing; offer a larger slice, raise its quota, or lower the precision");
    let never = || panic!("what never fits is told without waiting");
    assert_eq!(ledger.lease_when_free(weights(), mib(1741), &never).unwrap_err(), refused);
    // The runtime itself may grow into all that is not the runtime's.
    runtime.grow_to(mib(2048)).unwrap();
    assert!(matches!(runtime.grow_to(mib(2049)), Err(Refusal::NeverFits { kept, missing, .. })
        if kept == mib(0) && missing == mib(1)));
}

#[derive(Clone, Debug)]
enum Step {
    Lease(usize, u64),
    Drop(usize),
    Shrink(usize, u64),
    Grow(usize, u64),
    Quota(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = 0_u64..120;
    let slot = 0_usize..8;
    prop_oneof![
        4 => (0_usize..5, bytes.clone()).prop_map(|(owner, bytes)| Step::Lease(owner, bytes)),
        2 => slot.clone().prop_map(Step::Drop),
        2 => (slot.clone(), bytes.clone()).prop_map(|(slot, bytes)| Step::Shrink(slot, bytes)),
        2 => (slot, bytes.clone()).prop_map(|(slot, bytes)| Step::Grow(slot, bytes)),
        1 => bytes.prop_map(Step::Quota),
    ]
}

fn owner(index: usize) -> Owner {
    [weights(), activations(8), Owner::ScoreTiles, Owner::Texts, Owner::Runtime][index].clone()
}

/// Applies a step and says whether it was a grant.
fn apply(ledger: &Ledger, leases: &mut Vec<Lease>, step: &Step) -> Result<bool, Refusal> {
    let at = |slot: usize, len: usize| (len > 0).then(|| slot % len);
    match *step {
        Step::Lease(index, bytes) => {
            leases.push(ledger.lease(owner(index), ByteCount::bytes(bytes))?);
            return Ok(true);
        }
        Step::Drop(slot) => drop(at(slot, leases.len()).map(|slot| leases.swap_remove(slot))),
        Step::Shrink(slot, bytes) => {
            if let Some(slot) = at(slot, leases.len()) {
                leases[slot].shrink_to(ByteCount::bytes(bytes));
            }
        }
        Step::Grow(slot, bytes) => {
            if let Some(slot) = at(slot, leases.len()) {
                let before = leases[slot].bytes();
                leases[slot].grow_to(ByteCount::bytes(bytes))?;
                return Ok(leases[slot].bytes() > before);
            }
        }
        Step::Quota(bytes) => ledger.set_quota(ByteCount::bytes(bytes)),
    }
    Ok(false)
}

fn sum(leases: &[Lease], of: Option<&Owner>) -> u64 {
    let counted = leases.iter().filter(|lease| of.is_none_or(|owner| lease.owner() == owner));
    counted.map(|lease| lease.bytes().as_u64()).sum()
}

proptest! {
    #[test]
    fn the_book_agrees_with_its_leases(steps in proptest::collection::vec(step(), 0..80)) {
        let ledger = Ledger::new(ByteCount::bytes(100));
        let mut leases = Vec::new();
        let mut peak = 0;
        for step in &steps {
            let before = sum(&leases, None);
            match apply(&ledger, &mut leases, step) {
                Ok(true) => prop_assert!(ledger.held() <= ledger.quota(), "{step:?}"),
                Ok(false) => {}
                Err(Refusal::NeverFits { asked, quota, kept, missing, .. }) => {
                    let room = quota.checked_sub(kept).unwrap_or_default();
                    prop_assert_eq!(asked.checked_sub(room), Some(missing));
                    prop_assert!(missing > ByteCount::ZERO);
                    prop_assert_eq!(sum(&leases, None), before);
                }
                Err(Refusal::NotNow { asked, free, missing, holders, .. }) => {
                    // Granting it would overdraw by exactly what is missing.
                    let quota = ledger.quota().as_u64();
                    prop_assert_eq!(before + asked.as_u64(), quota + missing.as_u64());
                    prop_assert!(missing > ByteCount::ZERO && free == ledger.free());
                    prop_assert_eq!(holders, ledger.holders());
                }
            }
            peak = peak.max(sum(&leases, None));
            prop_assert_eq!(ledger.held().as_u64(), sum(&leases, None));
            for index in 0..5 {
                let held = ledger.held_by(|holder| *holder == owner(index)).as_u64();
                prop_assert_eq!(held, sum(&leases, Some(&owner(index))));
            }
            let holders = ledger.holders();
            prop_assert!(holders.is_sorted_by(|a, b| a.bytes >= b.bytes));
            prop_assert_eq!(holders.iter().map(|h| h.bytes.as_u64()).sum::<u64>(), ledger.held().as_u64());
        }
        prop_assert_eq!(ledger.peak().as_u64(), peak);
        drop(leases);
        prop_assert_eq!(ledger.held(), ByteCount::ZERO);
        prop_assert!(ledger.holders().is_empty());
    }

    #[test]
    fn who_is_told_to_wait_is_served_once_all_that_can_return_has_returned(
        steps in proptest::collection::vec(step(), 0..40),
        asked in 0_u64..120,
    ) {
        let ledger = Ledger::new(ByteCount::bytes(100));
        let mut leases = Vec::new();
        for step in steps.iter().filter(|step| !matches!(step, Step::Quota(_))) {
            let _granted = apply(&ledger, &mut leases, step);
        }
        let refused = ledger.lease(Owner::Texts, ByteCount::bytes(asked)).err();
        leases.retain(|lease| *lease.owner() == Owner::Runtime);
        let granted = ledger.lease(Owner::Texts, ByteCount::bytes(asked)).is_ok();
        prop_assert_eq!(granted, !matches!(refused, Some(Refusal::NeverFits { .. })));
    }

    #[test]
    fn threads_that_share_a_book_never_overdraw_it(
        histories in proptest::collection::vec(proptest::collection::vec(step(), 0..40), 2..4),
    ) {
        let ledger = Ledger::new(ByteCount::bytes(150));
        thread::scope(|scope| {
            for steps in &histories {
                let ledger = ledger.clone();
                scope.spawn(move || {
                    let mut leases = Vec::new();
                    // The quota stays: whatever happens, it bounds the peak.
                    for step in steps.iter().filter(|step| !matches!(step, Step::Quota(_))) {
                        let _granted = apply(&ledger, &mut leases, step);
                        let mine = sum(&leases, None);
                        let held = ledger.held().as_u64();
                        assert!(mine <= held && held <= 150, "{mine} of {held}");
                    }
                });
            }
        });
        prop_assert!(ledger.peak() <= ledger.quota());
        prop_assert_eq!(ledger.held(), ByteCount::ZERO);
    }
}
