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

#[cfg(test)]
mod tests {
    use super::*;

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
