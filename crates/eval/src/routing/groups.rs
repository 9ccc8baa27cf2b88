//! Experts by who chooses among them: all of them, or those of an ensemble's member or of a subset.

use omma_model::IMAGES;
use omma_routing::{Callers, Gate, RouterConfig};

/// Experts that the same tokens of images choose among.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// `Member 2`; empty where all experts are one group.
    pub(crate) title: String,
    /// Whose tokens these are, if not everybody's.
    pub(crate) member: Option<usize>,
    /// In increasing order.
    pub(crate) experts: Vec<usize>,
}

impl Group {
    /// The groups of a router that images reach.
    pub(crate) fn of_router(router: &RouterConfig) -> Vec<Self> {
        let gates = router.pool.gates(router.experts).unwrap_or_default();
        let alone = gates.len() == 1;
        let group = |(number, gate): (usize, &Gate)| {
            let (title, member) = match gate.callers {
                Callers::Modality(modality) if modality != IMAGES => return None,
                Callers::Member(member) => (format!("Member {}", member + 1), Some(member)),
                Callers::Everyone if !alone => (format!("Subset {}", number + 1), None),
                Callers::Everyone | Callers::Modality(_) => (String::new(), None),
            };
            Some(Self { title, member, experts: gate.experts.clone() })
        };
        gates.iter().enumerate().filter_map(group).collect()
    }

    #[cfg(test)]
    pub(crate) fn all(experts: usize) -> Self {
        Self { title: String::new(), member: None, experts: (0..experts).collect() }
    }
}

#[cfg(test)]
mod tests {
    use omma_model::{apply_settings, preset};

    use super::*;

    fn groups_of(preset_name: &str, settings: &[&str]) -> Vec<(String, Vec<usize>)> {
        let config = apply_settings(&preset(preset_name).unwrap(), settings).unwrap();
        let groups = Group::of_router(&config.moe().unwrap().router).into_iter();
        groups.map(|group| (group.title, group.experts)).collect()
    }

    #[test]
    fn experts_are_grouped_by_the_member_that_has_them() {
        let groups = groups_of("e3-tiny", &["moe.experts=6", "moe.members=2"]);
        let named = |title: &str, experts: [usize; 3]| (title.to_owned(), experts.to_vec());
        assert_eq!(groups, [named("Member 1", [0, 1, 2]), named("Member 2", [3, 4, 5])]);
        assert_eq!(groups_of("vmoe-tiny", &["moe.experts=3"]), [named("", [0, 1, 2])]);
    }
}
