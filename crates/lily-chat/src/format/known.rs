//! Formats of strings in JSON schema, as expressions for whole texts.

/// One part of a host's name.
const LABEL: &str = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?";
/// Years with a 29th of February.
const LEAP_YEAR: &str = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)";
/// A day of a month in any year.
const DAY: &str = r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
/// A time of day with its zone. Leap seconds, which come at the end of some months in UTC, are left
/// out: few readers of times take them.
const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])";
/// One byte of an address, in decimal.
const OCTET: &str = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// A character of a path.
const SEGMENT: &str = r"([A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})";

/// An expression for the texts of a format, or for most of them; `None` for one that is not known.
pub(crate) fn expression(format: &str) -> Option<String> {
    Some(match format {
        "date" => date(),
        "time" => TIME.into(),
        "date-time" => format!("{}T{TIME}", date()),
        "duration" => duration(),
        "email" => {
            format!(r"[A-Za-z0-9_%+\-]{{1,32}}(\.[A-Za-z0-9_%+\-]{{1,32}}){{0,3}}@{}", host())
        }
        "hostname" => host(),
        "ipv4" => format!(r"({OCTET}\.){{3}}{OCTET}"),
        "ipv6" => ipv6(),
        "uuid" => r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".into(),
        "uri" => uri(),
        _ => return None,
    })
}

fn date() -> String {
    format!("([0-9]{{4}}-{DAY}|{LEAP_YEAR}-02-29)")
}

fn host() -> String {
    format!(r"{LABEL}(\.{LABEL}){{0,9}}")
}

/// Such as `P3DT12H`: units in descending order without gaps, as RFC 3339 has them.
fn duration() -> String {
    let n = "[0-9]{1,9}";
    let chain = |units: [&str; 3]| {
        let [first, second, third] = units;
        let last = format!("{n}{third}");
        let middle = format!("{n}{second}({last})?");
        format!("({n}{first}({middle})?|{middle}|{last})")
    };
    let (date, time) = (chain(["Y", "M", "D"]), chain(["H", "M", "S"]));
    format!("P({n}W|{date}(T{time})?|T{time})")
}

/// Eight groups, or fewer with one gap.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut forms =
        vec![format!("{group}(:{group}){{7}}"), format!("::({group}(:{group}){{0,6}})?")];
    for before in 1..=7 {
        let behind = match 7 - before {
            0 => String::new(),
            most => format!("({group}(:{group}){{0,{}}})?", most - 1),
        };
        forms.push(format!("{group}(:{group}){{{}}}::{behind}", before - 1));
    }
    format!("({})", forms.join("|"))
}

/// With an authority or without; no addresses in brackets.
fn uri() -> String {
    let authority = format!("//({SEGMENT}*@)?({})?(:[0-9]{{1,5}})?(/{SEGMENT}*)*", host());
    let path = format!("/?({SEGMENT}+(/{SEGMENT}*)*)?");
    let rest = format!("({SEGMENT}|[/?])*");
    format!(r"[A-Za-z][A-Za-z0-9+\-.]*:({authority}|{path})(\?{rest})?(#{rest})?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::Regex;

    #[test]
    fn texts_of_a_format_match_and_others_do_not() {
        for (format, good, bad) in [
            (
                "date",
                &["2024-02-29", "1999-12-31", "2000-02-29", "0004-02-29"][..],
                &["2024-02-30", "2023-02-29", "1900-02-29", "2100-02-29", "2024-4-1", "24-01-01"][..],
            ),
            (
                "time",
                &["23:59:59Z", "00:00:00.25+05:30"],
                &["24:00:00Z", "12:00:00", "1:00:00Z", "12:00:60Z", "23:59:60Z"],
            ),
            ("date-time", &["2024-01-01T00:00:00Z"], &["2024-01-01 00:00:00Z", "2024-01-01"]),
            (
                "duration",
                &["P1Y2M3D", "PT5M", "P3DT12H", "P2W"],
                &["P", "PT", "P1D2Y", "1D", "P1H"],
            ),
            ("email", &["a.b+c@example.com"], &["a", "@b", "a@", "a b@c"]),
            ("hostname", &["localhost", "a-b.example"], &["-a", "a_b", "a..b", ""]),
            ("ipv4", &["127.0.0.1", "255.255.255.255"], &["256.0.0.1", "1.2.3", "01.2.3.4"]),
            (
                "ipv6",
                &[
                    "::",
                    "::1",
                    "1::",
                    "1:2:3:4:5:6:7:8",
                    "1::2:3",
                    "1:2:3:4:5:6:7::",
                    "::2:3:4:5:6:7:8",
                ],
                &["1:2", ":::", "1::2::3", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8", "12345::"],
            ),
            (
                "uuid",
                &["12345678-1234-1234-1234-123456789abc"],
                &["12345678123412341234123456789abc"],
            ),
            (
                "uri",
                &["https://me@example.com:80/a/b?c=d#e", "mailto:a@b.c", "file:///etc", "urn:x:y"],
                &["example.com", "http//x", "a b:c", ":x"],
            ),
        ] {
            let expression = expression(format).unwrap();
            let mut regex = Regex::new(&expression).unwrap();
            for text in good {
                assert!(regex.is_match(text), "{text} is a {format}");
            }
            for text in bad {
                assert!(!regex.is_match(text), "{text} is no {format}");
            }
        }
        assert_eq!(expression("regex"), None);
    }
}
