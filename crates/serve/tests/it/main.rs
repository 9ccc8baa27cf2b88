//! A real server on a free port, a small model behind it, and bytes on the wire.

mod client;
mod faults;
mod fuzz;
mod models;
mod predict;
mod protocol;
mod reload;
mod seen;
mod texts;
mod under_load;
