//! The no-drop rate: the highest rate at which no more than a given share of the frames is lost (RFC 2544
//! section 26.1), found by halving the interval between a rate that passes and one that does not.

use serde::Serialize;

/// Parameters of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Highest rate to try, frames a second.
    pub max_per_s: f64,
    /// Largest share of lost frames with which a trial passes.
    pub loss_max: f64,
    /// The search ends when the interval is no wider than this share of its upper end.
    pub precision: f64,
    /// Trials at each rate; it passes when more than half of them do.
    pub trials: u32,
}

/// Result of one trial at a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Frames sent per second.
    pub sent_per_s: f64,
    /// Share of the sent frames that were lost.
    pub loss: f64,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// The highest rate that passed, frames a second; 0 when none did.
    pub rate_per_s: f64,
    /// The median of the losses at it.
    pub loss: f64,
    /// Whether the sender and not the device limits the rate: at the next rate it sent slower than asked, or
    /// the highest rate allowed passed.
    pub limited_by_sender: bool,
    /// Rates in the order of their trials, each with the median of its trials.
    pub steps: Vec<Step>,
}

/// Trials at one rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Step {
    /// Frames a second.
    pub rate_per_s: f64,
    /// The median of the sent rates, frames a second.
    pub sent_per_s: f64,
    /// The median of the losses.
    pub loss: f64,
    /// Whether it passed.
    pub passed: bool,
}

/// Least share of a rate that a sender must send to have offered it.
const OFFERED: f64 = 0.98;

/// Fraction of the highest rate below which the precision is no finer. It ends the search for a device that
/// forwards nothing.
const LEAST: f64 = 100.0;

/// Searches for the no-drop rate. `trial` makes one trial at a rate, frames a second.
pub fn search<E>(search: &Search, mut trial: impl FnMut(f64) -> Result<Outcome, E>) -> Result<Found, E> {
    let mut steps = Vec::new();
    let mut found = Found { rate_per_s: 0.0, loss: 0.0, limited_by_sender: false, steps: Vec::new() };
    let (mut low, mut high) = (0.0, search.max_per_s);
    let mut rate = search.max_per_s;
    loop {
        let step = try_rate(search, rate, &mut trial)?;
        steps.push(step);
        if step.passed {
            (found.rate_per_s, found.loss, low) = (rate, step.loss, rate);
        } else {
            high = rate;
            found.limited_by_sender = step.loss <= search.loss_max;
        }
        if low >= search.max_per_s || high - low <= search.precision * high.max(search.max_per_s / LEAST) {
            break;
        }
        rate = f64::midpoint(low, high);
    }
    found.limited_by_sender |= low >= search.max_per_s;
    found.steps = steps;
    Ok(found)
}

fn try_rate<E>(
    search: &Search,
    rate: f64,
    trial: &mut impl FnMut(f64) -> Result<Outcome, E>,
) -> Result<Step, E> {
    let outcomes = (0..search.trials.max(1)).map(|_| trial(rate)).collect::<Result<Vec<_>, E>>()?;
    let passes = |outcome: &&Outcome| outcome.loss <= search.loss_max && outcome.sent_per_s >= OFFERED * rate;
    let passed = outcomes.iter().filter(passes).count() * 2 > outcomes.len();
    let of = |field: fn(&Outcome) -> f64| median(&mut outcomes.iter().map(field).collect::<Vec<_>>());
    let loss = of(|outcome| outcome.loss);
    let sent_per_s = of(|outcome| outcome.sent_per_s);
    Ok(Step { rate_per_s: rate, sent_per_s, loss, passed })
}

/// Returns the median of one or more samples, and sorts them. Of an even number it is the mean of the two in
/// the middle.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let (low, high) = (samples[(samples.len() - 1) / 2], samples[samples.len() / 2]);
    low + (high - low) / 2.0
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_median_of_two_lies_between_them() {
        assert!((median(&mut [3.0, 1.0]) - 2.0).abs() < 1e-9);
        assert!((median(&mut [9.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&mut [4.0, 1.0, 9.0, 2.0]) - 3.0).abs() < 1e-9);
        assert!((median(&mut [7.0]) - 7.0).abs() < 1e-9);
    }

    const SEARCH: Search = Search { max_per_s: 1e6, loss_max: 0.001, precision: 0.01, trials: 3 };

    /// A device that forwards `capacity` frames a second and drops the rest, behind a sender that sends
    /// `sender` at most.
    fn device(capacity: f64, sender: f64) -> impl FnMut(f64) -> Result<Outcome, Infallible> {
        move |rate| {
            let sent_per_s = rate.min(sender);
            Ok(Outcome { sent_per_s, loss: (1.0 - capacity / sent_per_s).max(0.0) })
        }
    }

    #[test]
    fn the_capacity_of_a_device_is_found_within_the_precision() {
        for capacity in [20e3, 333e3, 700e3, 990e3] {
            let Ok(found) = search(&SEARCH, device(capacity, 2e6));
            let allowed = capacity / (1.0 - SEARCH.loss_max);
            assert!(
                found.rate_per_s <= allowed && found.rate_per_s >= allowed * 0.98,
                "{capacity}: {found:?}"
            );
            assert!(found.loss <= SEARCH.loss_max && !found.limited_by_sender);
        }
    }

    #[test]
    fn a_device_faster_than_the_highest_rate_ends_the_search_at_once() {
        let Ok(found) = search(&SEARCH, device(5e6, 2e6));
        assert_eq!((found.rate_per_s, found.steps.len(), found.limited_by_sender), (1e6, 1, true));
    }

    #[test]
    fn a_sender_slower_than_the_device_is_told() {
        let Ok(found) = search(&SEARCH, device(5e6, 400e3));
        assert!(found.limited_by_sender && (380e3..=410e3).contains(&found.rate_per_s), "{found:?}");
    }

    #[test]
    fn a_device_that_forwards_nothing_has_no_rate() {
        let Ok(found) = search(&SEARCH, device(0.0, 2e6));
        assert!(found.rate_per_s.abs() < f64::EPSILON);
        assert!(found.steps.iter().all(|step| !step.passed));
    }

    #[test]
    fn one_bad_trial_of_three_does_not_fail_a_rate_and_two_do() {
        for (bad, passes) in [(1, true), (2, false)] {
            let mut number = 0;
            let trial = |rate| {
                number += 1;
                let loss = if (number - 1) % 3 < bad { 0.5 } else { 0.0 };
                Ok::<_, Infallible>(Outcome { sent_per_s: rate, loss })
            };
            let Ok(found) = search(&SEARCH, trial);
            assert_eq!(found.steps[0].passed, passes);
        }
    }

    #[test]
    fn the_devices_error_is_the_searchs() {
        assert_eq!(search(&SEARCH, |_| Err::<Outcome, _>("gone")), Err("gone"));
    }
}
