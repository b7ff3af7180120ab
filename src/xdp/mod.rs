//! To be written by the slice that owns this folder.
