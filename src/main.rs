//! The `palisade` command.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
