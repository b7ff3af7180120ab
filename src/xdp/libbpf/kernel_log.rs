//! Messages of libbpf, which has the kernel's reason for a refusal and prints it.

use std::cell::RefCell;
use std::sync::Once;

use libbpf_rs::{PrintLevel, set_print};

thread_local! {
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `work` and returns, beside its result, the lines that libbpf printed on this thread meanwhile.
pub(crate) fn captured<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| _ = set_print(Some((PrintLevel::Info, keep))));
    LINES.set(Some(Vec::new()));
    let result = work();
    (result, LINES.take().unwrap_or_default())
}

/// Sends other messages of libbpf to the debug log: the caller of libbpf has the error.
#[allow(clippy::needless_pass_by_value)] // The signature is that of libbpf-rs's callback.
fn keep(_level: PrintLevel, text: String) {
    let line = text.trim().trim_start_matches("libbpf: ").to_owned();
    LINES.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            lines.push(line);
        } else {
            tracing::debug!(target: "palisade::xdp", "libbpf: {line}");
        }
    });
}

/// Returns the kernel's reason among the lines (netlink's extended acknowledgement, or the messages of
/// verifier and libbpf), and the text of the error.
pub(crate) fn reason(lines: &[String], error: &str) -> String {
    let told = lines.iter().find_map(|line| line.strip_prefix("Kernel error message: "));
    match told.map_or_else(|| lines.join("; "), str::to_owned) {
        told if told.is_empty() => error.to_owned(),
        told => format!("{told} ({error})"),
    }
}

/// The verifier's reason for the refusal of a program, among the lines: its last words before its statistics.
pub(crate) fn verifier_reason(lines: &[String]) -> Option<String> {
    let log = lines.iter().find(|line| line.contains("BEGIN PROG LOAD LOG"))?;
    let mut words = log.lines().map(str::trim).rev();
    let mut last = words.by_ref().skip_while(|line| !line.starts_with("processed "));
    last.next();
    let reason = last.next().unwrap_or("it tells no reason");
    Some(format!("the verifier of this kernel refuses the program: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_words_are_those_before_its_statistics() {
        let log = "prog 'x': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\nR0 invalid mem access 'scalar'\n\
                   processed 2 insns (limit 1000000) max_states_per_insn 0\n-- END PROG LOAD LOG --";
        let lines = ["prog 'x': BPF program load failed: Permission denied", log].map(str::to_owned);
        let expected = "the verifier of this kernel refuses the program: R0 invalid mem access 'scalar'";
        assert_eq!(verifier_reason(&lines).as_deref(), Some(expected));
        assert_eq!(verifier_reason(&lines[..1]), None);
    }

    #[test]
    fn the_kernels_words_come_before_the_errors() {
        let line = |text: &str| text.to_owned();
        let lines =
            [line("prog 'x': failed"), line("Kernel error message: Peer MTU is too large to set XDP")];
        assert_eq!(reason(&lines, "ERANGE"), "Peer MTU is too large to set XDP (ERANGE)");
        assert_eq!(reason(&lines[..1], "EINVAL"), "prog 'x': failed (EINVAL)");
        assert_eq!(reason(&[], "EINVAL"), "EINVAL");
    }

    #[test]
    fn lines_of_one_piece_of_work_do_not_reach_the_next() {
        let ((), lines) = captured(|| keep(PrintLevel::Warn, "libbpf: one\n".into()));
        assert_eq!(lines, ["one"]);
        assert_eq!(captured(|| 7), (7, Vec::new()));
    }
}
