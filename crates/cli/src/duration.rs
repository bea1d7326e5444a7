//! Times on the command line and in configuration files: a number with its unit.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer};

/// A time as a person writes it. Bare numbers are refused: nobody sees whether they are seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("min", 60.0), ("h", 3600.0)];

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = (text[..unit_at].trim(), &text[unit_at..]);
        let wrong =
            || format!("`{text}` is not a time; write for example `200 ms`, `25 s`, `10 min`");
        let number: f64 = number.parse().map_err(|_| wrong())?;
        if unit.is_empty() {
            return Err(format!("`{text}` has no unit; write for example `{text} s`"));
        }
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, seconds) =
            known.ok_or_else(|| format!("`{unit}` is not a unit of time; use ms, s, min or h"))?;
        Duration::try_from_secs_f64(number * seconds).map(Self).map_err(|_| wrong())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;

        impl serde::de::Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, for example \"25 s\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map_err(E::custom)
            }
        }

        from.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_carry_units() {
        let read = |text: &str| text.parse::<Time>().map(|time| time.0.as_millis());
        assert_eq!(read("200 ms"), Ok(200));
        assert_eq!(read("25s"), Ok(25_000));
        assert_eq!(read("1.5 min"), Ok(90_000));
        assert_eq!(read("2 h"), Ok(7_200_000));
        let wrong = ["5", "s", "5 d", "-1 s", "1e400 s", ""].map(|text| read(text).unwrap_err());
        insta::assert_snapshot!(wrong.join("\n"));
    }
}
