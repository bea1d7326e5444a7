//! What a run's events tell of its attempts: what was in work at some moment, and whether
//! everything counted once.

use std::collections::BTreeMap;

use serde_json::Value;

/// Events of one run, in their order.
#[derive(Clone, Debug)]
pub struct History(Vec<Value>);

/// An attempt, as its lease tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The unit's number.
    pub unit: u64,
    /// Which attempt of the unit, from 1.
    pub attempt: u64,
    /// Its identity.
    pub token: u64,
    /// Where it runs.
    pub slice: String,
}

impl History {
    /// Of the lines that `logs --json` prints and `events.jsonl` holds.
    pub fn parse(lines: &str) -> Self {
        let event = |line: &str| serde_json::from_str::<Value>(line).unwrap()["event"].take();
        Self(lines.lines().map(event).collect())
    }

    /// The events of one kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |event| event["kind"] == kind)
    }

    /// How many events there are of one kind.
    pub fn count(&self, kind: &str) -> usize {
        self.of_kind(kind).count()
    }

    /// Every attempt that was started.
    pub fn leases(&self) -> impl Iterator<Item = Lease> {
        self.of_kind("unit_leased").map(lease)
    }

    /// Attempts whose unit has neither a result nor a failure since they started.
    pub fn open(&self) -> Vec<Lease> {
        let mut open: BTreeMap<u64, Lease> = BTreeMap::new();
        for event in &self.0 {
            let unit = || event["unit"].as_u64().unwrap();
            match event["kind"].as_str().unwrap() {
                "unit_leased" => drop(open.insert(unit(), lease(event))),
                "unit_committed" | "unit_failed" => drop(open.remove(&unit())),
                _ => {}
            }
        }
        open.into_values().collect()
    }

    /// Whether this attempt is over and brought nothing. A silent worker loses its units to
    /// whichever ends first, its session or the lease of a unit that it never spoke of.
    pub fn has_lost(&self, lease: &Lease) -> bool {
        !self.open().contains(lease) && !self.is_committed(lease.unit)
    }

    /// Whether this unit has a result.
    pub fn is_committed(&self, unit: u64) -> bool {
        self.of_kind("unit_committed").any(|event| event["unit"] == unit)
    }

    /// How often this unit was started.
    pub fn attempts(&self, unit: u64) -> usize {
        self.leases().filter(|lease| lease.unit == unit).count()
    }

    /// Units that have a result, each as often as it was told.
    pub fn committed(&self) -> Vec<u64> {
        self.of_kind("unit_committed").map(|event| event["unit"].as_u64().unwrap()).collect()
    }

    /// What is wrong if not each of these units was committed exactly once.
    pub fn miscount(&self, units: u64) -> Option<String> {
        let mut committed = self.committed();
        committed.sort_unstable();
        let expected: Vec<u64> = (0..units).collect();
        (committed != expected)
            .then(|| format!("of {units} units these were committed: {committed:?}"))
    }
}

fn lease(event: &Value) -> Lease {
    let number = |key: &str| event[key].as_u64().unwrap();
    Lease {
        unit: number("unit"),
        attempt: number("attempt"),
        token: number("token"),
        slice: event["slice"].as_str().unwrap().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(events: &[Value]) -> History {
        let line = |event: &Value| serde_json::json!({ "event": event }).to_string();
        History::parse(&events.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn open_attempts_are_those_without_an_end() {
        let leased = |unit: u64, token: u64| {
            serde_json::json!({"kind": "unit_leased", "unit": unit, "attempt": 1, "token": token,
                "slice": "a.0"})
        };
        let committed = |unit: u64| serde_json::json!({"kind": "unit_committed", "unit": unit});
        let history =
            history(&[leased(0, 1), leased(1, 2), committed(0), leased(1, 3), committed(2)]);
        let open: Vec<u64> = history.open().iter().map(|lease| lease.token).collect();
        assert_eq!((open, history.attempts(1)), (vec![3], 2));
        assert!(history.is_committed(0) && !history.is_committed(1));
        let lease = |unit, token| Lease { unit, attempt: 1, token, slice: "a.0".to_owned() };
        assert!(history.has_lost(&lease(1, 2)), "another took its place");
        assert!(!history.has_lost(&lease(1, 3)) && !history.has_lost(&lease(0, 1)));
        assert!(history.miscount(3).unwrap().contains("[0, 2]"));
    }

    #[test]
    fn a_unit_that_counts_twice_is_a_miscount() {
        let committed = |unit: u64| serde_json::json!({"kind": "unit_committed", "unit": unit});
        assert_eq!(history(&[committed(1), committed(0)]).miscount(2), None);
        assert!(history(&[committed(0), committed(0), committed(1)]).miscount(2).is_some());
    }
}
