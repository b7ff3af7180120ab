//! Waits of tests: a test waits for an event, so that a loaded machine makes it slower and never wrong. A sleep stands
//! in a loop that looks for the event; a time that has passed is no evidence.

use crate::text::{files, name_of, parts, read};

/// Words that begin a block in which a sleep is the pause between two looks, or between two things that a test does.
const LOOPS: [&str; 3] = ["while", "loop", "for"];
/// Outcomes of a probe that waited in vain: silence proves nothing. A dropped packet is counted under its reason.
const SILENCE: [&str; 2] = ["Outcome::TimedOut", "SILENCE"];

/// Blocks of code that are open at a place, by the words before their braces.
fn blocks_at(code: &str, at: usize) -> Vec<&str> {
    let mut open = vec![];
    let mut start = 0;
    for (place, c) in code[..at].char_indices() {
        match c {
            '{' => {
                open.push(code[start..place].trim());
                start = place + 1;
            }
            '}' => {
                open.pop();
                start = place + 1;
            }
            ';' => start = place + 1,
            _ => {}
        }
    }
    open
}

fn has_word(text: &str, words: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| words.contains(&word))
}

/// Calls of `sleep` outside any loop, and assertions about elapsed time or silence, by line.
fn bare_waits(text: &str) -> Vec<(usize, &'static str)> {
    let code = parts(text).code;
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    let sleeps = code.match_indices("sleep(").filter(|(at, _)| !code[..*at].ends_with("fn "));
    let bare = sleeps.filter(|(at, _)| !blocks_at(&code, *at).iter().any(|block| has_word(block, &LOOPS)));
    let mut found: Vec<_> = bare.map(|(at, _)| (line(at), "a sleep outside a loop")).collect();
    for (at, _) in code.match_indices("assert") {
        let statement = &code[at..at + code[at..].find(';').unwrap_or(0)];
        if statement.contains("elapsed()") && !has_word(statement, &["PATIENCE", "FLOOD_TIME_MAX"]) {
            found.push((line(at), "an assertion about elapsed time"));
        }
        if SILENCE.iter().any(|word| statement.contains(word)) {
            found.push((line(at), "silence as evidence"));
        }
    }
    found
}

#[test]
fn tests_wait_for_events_and_take_no_silence_for_a_denial() {
    let mut wrong = vec![];
    for file in files("tests", "rs") {
        let name = name_of(&file);
        // A probe's outcome is the subject of the laboratory's own tests.
        if name.starts_with("tests/tidy/") || name == "tests/netns/lab.rs" {
            continue;
        }
        wrong.extend(
            bare_waits(&read(&file)).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_bare_wait_is_found_and_a_poll_is_not() {
    let bare = "fn f() {\n    sleep(A);\n    assert!(start.elapsed() < B);\n    assert_eq!(x, Outcome::TimedOut);\n}\n";
    assert_eq!(bare_waits(bare).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4]);
    let poll = "fn f() {\n    while !done() {\n        assert!(start.elapsed() < PATIENCE);\n        sleep(A);\n    }\n}\n";
    assert!(bare_waits(poll).is_empty());
}
