//! Rules on the repository's own text: imports between folders, circles, sizes of files and folders, unsafe
//! code, words that the packet path avoids, documents, the walks of the architecture, beginnings of
//! sentences, regression files of proptest, and filters of the soak. A rule has no list of exceptions: a place that breaks it fails its test.

mod circles;
mod documents;
mod imports;
mod loom;
mod modules;
mod packet_path;
mod regressions;
mod sentences;
mod sizes;
mod soak;
mod text;
mod unsafe_code;
mod waits;
mod walks;
