//! Binary `palisade-cni`, the CNI plugin.

fn main() -> std::process::ExitCode {
    palisade::cni::main()
}
