//! The `palisade` command.

fn main() -> std::process::ExitCode {
    palisade::cli::main()
}
