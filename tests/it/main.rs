//! The one integration binary. A file a subject; `tidy` checks that none is forgotten.

mod disconnect;
mod faults;
mod tags;
mod tidy;
mod transparency;
