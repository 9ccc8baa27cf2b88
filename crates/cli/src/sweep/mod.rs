//! Sweeps: one recipe, a grid of settings, one table that is chosen from by held-out images.
//!
//! | file | room for |
//! |---|---|
//! | `grid.rs` | what the user typed: keys, their values, all combinations |
//! | `folder.rs` | the points of a sweep on disk, which later grids add to |
//! | `scores.rs` | what the runs of a point reached |
//! | `summary.rs` | the table: rows in their order, the best of them, commands |
//! | `page.rs` | the same to look at |

mod folder;
mod grid;
mod page;
mod scores;
mod summary;

pub(crate) use self::{
    folder::{Subject, SweepFolder, Wanted},
    grid::Grid,
    page::page,
    summary::Summary,
};
