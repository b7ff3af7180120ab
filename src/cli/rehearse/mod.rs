//! Commands about tables beside those in force: `palisade shadow` and `palisade audit`.

pub(super) mod audit;
pub(super) mod shadow;
