//! Integration tests of `omma-eval`, one module per topic.

mod atlas;
mod compare;
mod contrast;
mod detection;
mod drawn;
mod gallery;
mod golden;
mod ranks;
mod record;
mod restriction;
mod subsets;
mod test;
