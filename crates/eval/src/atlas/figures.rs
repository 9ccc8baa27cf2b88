//! The figures of an atlas, each from its record.

use omma_report::{
    Bars, Flow as FlowFigure, FlowLink, FlowStage, HeatMap, Lines, PatchMap, PatchMark, Series,
};

use super::{
    flow::Flow,
    gates::ModalityRoutes,
    record::{BlockRoutes, ClassRoutes, ModelRoutes},
    words::WordKind,
};

/// Classes of a heat map; of more, those whose tokens are spread least like everybody's.
const MOST_CLASSES: usize = 60;
/// Experts of a figure with one bar each.
const MOST_BARS: usize = 128;

/// Where the classes of images go (paper 003 Fig. 4).
pub(super) fn class_map(
    block: &BlockRoutes,
    own: &ClassRoutes,
    table: &[Vec<f64>],
    what: &str,
    names: &[String],
) -> String {
    let total = |row: &[f64]| row.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let mut all = vec![0.0; own.experts.len()];
    for row in table {
        all.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
    }
    let apart = |class: &usize| -> f64 {
        let (row, sum, whole) = (&table[*class], total(&table[*class]), total(&all));
        row.iter().zip(&all).map(|(own, all)| (own / sum - all / whole).abs()).sum()
    };
    let mut shown = own.order.clone();
    shown.retain(|class| table[*class].iter().sum::<f64>() > 0.0);
    let classes = shown.len();
    if classes > MOST_CLASSES {
        let mut furthest = shown.clone();
        furthest.sort_by(|a, b| apart(b).total_cmp(&apart(a)));
        furthest.truncate(MOST_CLASSES);
        shown.retain(|class| furthest.contains(class));
    }
    let title = match shown.len() < classes {
        true => format!("{}: {what} ({} of {classes} classes)", title(block, own), shown.len()),
        false => format!("{}: {what}", title(block, own)),
    };
    let name = |class: &usize| names.get(*class).cloned().unwrap_or_else(|| class.to_string());
    let percent = |class: &usize| {
        let sum = total(&table[*class]);
        table[*class].iter().map(|count| (1000.0 * count / sum).round() / 10.0).collect()
    };
    HeatMap {
        title,
        row_label: "class".to_owned(),
        column_label: "expert".to_owned(),
        rows: shown.iter().map(name).collect(),
        columns: own.experts.iter().map(usize::to_string).collect(),
        values: shown.iter().map(percent).collect(),
    }
    .svg_by_largest()
}

/// `Block 3`, with the member or subset that it is of.
fn title(block: &BlockRoutes, own: &ClassRoutes) -> String {
    match own.part.as_str() {
        "" => format!("Block {}", block.block),
        part => format!("Block {}, {}", block.block, part.to_lowercase()),
    }
}

/// How much classes and experts know of each other in every layer, and how much by chance.
pub(super) fn information(routes: &ModelRoutes) -> Option<String> {
    let mut groups = (Vec::new(), Vec::new());
    let mut labels = Vec::new();
    for block in &routes.blocks {
        for own in &block.classes {
            let Some(test) = &own.test else { continue };
            let most = own.information.expert_entropy.max(1e-12);
            labels.push(match own.part.as_str() {
                "" => block.block.to_string(),
                part => format!("{}, {}", block.block, part.to_lowercase()),
            });
            groups.0.push(100.0 * (test.nats / most).min(1.0));
            groups.1.push(100.0 * (test.chance / most).min(1.0));
        }
    }
    (!labels.is_empty()).then(|| {
        Bars {
            title: "What the class settles of the choice of expert".to_owned(),
            x_label: "block".to_owned(),
            y_label: "mutual information, % of the experts' entropy".to_owned(),
            labels,
            groups: vec![("found".to_owned(), groups.0), ("by chance".to_owned(), groups.1)],
            reference: None,
            errors: Vec::new(),
        }
        .svg()
    })
}

/// The load of every expert in every layer (Fig. 7).
pub(super) fn load(routes: &ModelRoutes) -> String {
    let experts = routes.blocks.iter().map(|block| block.experts).max().unwrap_or(0);
    HeatMap {
        title: "Load of every expert".to_owned(),
        row_label: "block".to_owned(),
        column_label: "expert".to_owned(),
        rows: routes.blocks.iter().map(|block| block.block.to_string()).collect(),
        columns: (0..experts).map(|expert| expert.to_string()).collect(),
        values: routes
            .blocks
            .iter()
            .map(|block| block.load.iter().map(|load| (1000.0 * load).round() / 10.0).collect())
            .collect(),
    }
    .svg_by_largest()
}

/// Tokens per expert and modality, and those that the capacity of training would have dropped (paper 002 Figs. 17–22,
/// 39).
pub(super) fn tokens(block: &BlockRoutes) -> Option<String> {
    if block.experts > MOST_BARS {
        return None;
    }
    let several = block.modalities.len() > 1;
    let mut groups = Vec::new();
    for own in &block.modalities {
        let name = if several { own.modality.as_str() } else { "tokens" };
        match &own.dropped_in_training {
            None => groups.push((name.to_owned(), own.load.clone())),
            Some(dropped) => {
                let kept = own.load.iter().zip(dropped).map(|(load, dropped)| load - dropped);
                groups.push((format!("{name} with a place"), kept.collect()));
                groups.push((format!("{name} without"), dropped.clone()));
            }
        }
    }
    let all: f64 = block.modalities.iter().flat_map(|own| &own.load).sum();
    let balanced = all / block.available.max(1) as f64;
    let reference = match block.capacity_factor {
        Some(factor) => ("capacity in training".to_owned(), factor * balanced),
        None => ("balanced".to_owned(), balanced),
    };
    Some(
        Bars {
            title: format!("Block {}: tokens of every expert", block.block),
            x_label: "expert".to_owned(),
            y_label: if block.soft { "combine mass" } else { "tokens" }.to_owned(),
            labels: (0..block.experts).map(|expert| expert.to_string()).collect(),
            groups,
            reference: Some(reference),
            errors: Vec::new(),
        }
        .svg(),
    )
}

/// Lines over the depth of a model, one for every modality.
fn by_depth(
    routes: &ModelRoutes,
    (title, y_label): (&str, &str),
    most: f64,
    value: impl Fn(&ModalityRoutes) -> (f64, Option<f64>),
) -> String {
    let mut names: Vec<&str> = Vec::new();
    for own in routes.blocks.iter().flat_map(|block| &block.modalities) {
        if !names.contains(&own.modality.as_str()) {
            names.push(&own.modality);
        }
    }
    let series = |name: &&str| {
        let own = routes.blocks.iter().filter_map(|block| {
            let own = block.modalities.iter().find(|own| own.modality == **name)?;
            Some((block.block as f64, value(own)))
        });
        let own: Vec<(f64, (f64, Option<f64>))> = own.collect();
        let error: Option<Vec<f64>> = own.iter().map(|(_, (_, error))| *error).collect();
        let points = own.iter().map(|(block, (value, _))| (*block, *value)).collect();
        Series { error, ..Series::new(*name, points) }
    };
    Lines {
        title: title.to_owned(),
        x_label: "block".to_owned(),
        y_label: y_label.to_owned(),
        series: names.iter().map(series).collect(),
        y_range: Some((0.0, most)),
        ..Lines::default()
    }
    .svg()
}

/// Experts of the layer that has most.
fn most_experts(routes: &ModelRoutes) -> f64 {
    routes.blocks.iter().map(|block| block.experts).max().unwrap_or(1) as f64
}

/// The largest gate by depth (paper 002 Fig. 38).
pub(super) fn largest_gate(routes: &ModelRoutes) -> String {
    let words = ("Largest gate of a token by depth", "mean, and one standard deviation");
    by_depth(routes, words, 1.0, |own| (own.largest_gate, Some(own.largest_gate_deviation)))
}

/// Entropies of gates by depth.
pub(super) fn local_entropy(routes: &ModelRoutes) -> String {
    let words =
        ("Entropy of a token's gates by depth", "nats; 0 is sure, the top is evenly spread");
    by_depth(routes, words, most_experts(routes).ln().max(0.1), |own| (own.local_entropy, None))
}

/// Experts in use by depth.
pub(super) fn experts_in_use(routes: &ModelRoutes) -> String {
    let words = ("Experts in use by depth", "e^H of the mean gates");
    by_depth(routes, words, most_experts(routes), |own| (own.experts, None))
}

/// Whom a layer would serve first (Figs. 32–37).
pub(super) fn queue(block: &BlockRoutes) -> Option<String> {
    let queued: Vec<&ModalityRoutes> =
        block.modalities.iter().filter(|own| !own.queue.is_empty()).collect();
    let bins = queued.first()?.queue.len();
    let middle = |bin: usize| 100.0 * (bin as f64 + 0.5) / bins as f64;
    let several = queued.len() > 1;
    let mut series = Vec::new();
    for own in &queued {
        let points = own.queue.iter().enumerate();
        let priority = points.clone().filter(|(_, bin)| bin.tokens > 0.0);
        let priority = priority.map(|(place, bin)| (middle(place), bin.priority)).collect();
        let name =
            if several { format!("priority of {}", own.modality) } else { "priority".to_owned() };
        series.push(Series::new(name, priority));
    }
    if several {
        let all = |bin: usize| queued.iter().map(|own| own.queue[bin].tokens).sum::<f64>().max(1.0);
        let own = queued[queued.len() - 1];
        let points = (0..bins).map(|bin| (middle(bin), own.queue[bin].tokens / all(bin))).collect();
        let name = format!("share of {}", own.modality);
        series.push(Series { dashed: true, ..Series::new(name, points) });
    }
    Some(
        Lines {
            title: format!("Block {}: from the first served to the last", block.block),
            x_label: "place in the queue of a batch, %".to_owned(),
            y_label: "priority: what the token chose with".to_owned(),
            series,
            y_range: Some((0.0, 1.0)),
            ..Lines::default()
        }
        .svg(),
    )
}

/// How sure the router is at every place of an image.
pub(super) fn gates_by_place(block: &BlockRoutes) -> Option<String> {
    let (rows, columns) = block.grid;
    let prefix = block.gates_by_place.len().checked_sub(rows * columns)?;
    let gates = &block.gates_by_place[prefix..];
    let ends = (
        gates.iter().copied().fold(f64::INFINITY, f64::min),
        gates.iter().copied().fold(0.0, f64::max),
    );
    if rows * columns < 2 || block.whole_images || ends.1 <= 0.0 {
        return None;
    }
    let mark = |(place, gate): (usize, &f64)| {
        let (row, column) = (place / columns + 1, place % columns + 1);
        Some(PatchMark {
            colour: 0,
            strength: (gate - ends.0) / (ends.1 - ends.0).max(1e-9),
            word: format!("{:.0}", 100.0 * gate),
            hover: format!("row {row}, column {column}: {:.1} %", 100.0 * gate),
        })
    };
    Some(
        PatchMap {
            title: format!("Block {}: mean largest gate by place, %", block.block),
            grid: block.grid,
            picture: None,
            patches: gates.iter().enumerate().map(mark).collect(),
            legend: Vec::new(),
        }
        .svg(),
    )
}

/// Where experts take their tokens from.
pub(super) fn experts_by_place(block: &BlockRoutes) -> Option<String> {
    let (rows, columns) = block.grid;
    let prefix = block.gates_by_place.len().checked_sub(rows * columns)?;
    let own: Vec<Vec<f64>> = block
        .experts_by_place
        .iter()
        .map(|places| places[prefix.min(places.len())..].to_vec())
        .collect();
    if rows * columns < 2 || own.iter().flatten().all(|count| *count <= 0.0) {
        return None;
    }
    let percent = |places: &Vec<f64>| {
        let total = places.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        places.iter().map(|count| (10_000.0 * count / total).round() / 100.0).collect()
    };
    let place = |place: usize| format!("{}/{}", place / columns + 1, place % columns + 1);
    Some(
        HeatMap {
            title: format!("Block {}: where experts take their tokens from", block.block),
            row_label: "expert".to_owned(),
            column_label: "row/column of the patch".to_owned(),
            rows: (0..block.experts).map(|expert| expert.to_string()).collect(),
            columns: (0..rows * columns).map(place).collect(),
            values: own.iter().map(percent).collect(),
        }
        .svg_by_largest(),
    )
}

/// The ways of tokens (Fig. 30); nothing for a model with one layer.
pub(super) fn flow(routes: &ModelRoutes) -> Option<String> {
    if routes.flows.is_empty() {
        return None;
    }
    let mut blocks: Vec<usize> =
        routes.flows.iter().flat_map(|flow| [flow.from, flow.to]).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let experts = |block: &usize| {
        let own = routes.blocks.iter().find(|own| own.block == *block);
        own.map_or(0, |own| own.experts)
    };
    let stage = |block: &usize| FlowStage {
        name: format!("block {block}"),
        places: (0..experts(block)).map(|e| e.to_string()).chain(["none".to_owned()]).collect(),
    };
    let mut kinds: Vec<String> = Vec::new();
    for flow in &routes.flows {
        if !kinds.contains(&flow.modality) {
            kinds.push(flow.modality.clone());
        }
    }
    let links = |pair: &[usize]| -> Vec<FlowLink> {
        let own = routes.flows.iter().filter(|flow| (flow.from, flow.to) == (pair[0], pair[1]));
        own.flat_map(|flow| links_of(flow, &kinds)).collect()
    };
    let figure = FlowFigure {
        title: "Ways of tokens from layer to layer".to_owned(),
        stages: blocks.iter().map(stage).collect(),
        links: blocks.windows(2).map(links).collect(),
        kinds: if kinds.len() > 1 { kinds.clone() } else { Vec::new() },
    };
    Some(figure.svg())
}

fn links_of(flow: &Flow, kinds: &[String]) -> Vec<FlowLink> {
    let kind = kinds.iter().position(|kind| *kind == flow.modality).unwrap_or(0);
    let rows = flow.tokens.iter().enumerate();
    let link = |(from, row): (usize, &Vec<f64>)| -> Vec<FlowLink> {
        row.iter()
            .enumerate()
            .map(|(to, amount)| FlowLink { from, to, amount: *amount, kind })
            .collect()
    };
    rows.flat_map(link).collect()
}

/// Experts kept against tokens that keep their best one (Fig. 13), a line for every layer.
pub(super) fn coverage(routes: &ModelRoutes, modality: &str) -> Option<String> {
    let series = |block: &BlockRoutes| {
        let own = block.modalities.iter().find(|own| own.modality == modality)?;
        let points = own.coverage.iter().enumerate();
        let points = points.map(|(place, step)| ((place + 1) as f64, 100.0 * step.coverage));
        Some(Series::new(format!("block {}", block.block), points.collect()))
    };
    let series: Vec<Series> =
        routes.blocks.iter().filter(|block| !block.soft).filter_map(series).collect();
    (!series.is_empty()).then(|| {
        Lines {
            title: format!("Coverage of {modality}"),
            x_label: "experts kept, those that serve most first".to_owned(),
            y_label: "tokens whose best expert is among them, %".to_owned(),
            series,
            y_range: Some((0.0, 100.0)),
            ..Lines::default()
        }
        .svg()
    })
}

/// Kinds of words that every expert takes (Fig. 40).
pub(super) fn word_kinds(block: &BlockRoutes) -> Option<String> {
    let busy: Vec<_> = block
        .words
        .iter()
        .filter(|own| own.kinds.iter().any(|(_, count)| *count > 0.0))
        .take(MOST_BARS)
        .collect();
    if busy.is_empty() {
        return None;
    }
    let share = |kind: WordKind| -> Vec<f64> {
        let of = |own: &&&super::words::ExpertWords| {
            let all: f64 = own.kinds.iter().map(|(_, count)| count).sum();
            let found = own.kinds.iter().find(|(other, _)| *other == kind);
            100.0 * found.map_or(0.0, |(_, count)| *count) / all.max(f64::MIN_POSITIVE)
        };
        busy.iter().map(|own| of(&own)).collect()
    };
    Some(
        Bars {
            title: format!("Block {}: kinds of words of every expert", block.block),
            x_label: "expert (those that take texts)".to_owned(),
            y_label: "% of its tokens of texts".to_owned(),
            labels: busy.iter().map(|own| own.expert.to_string()).collect(),
            groups: WordKind::ALL.map(|kind| (kind.name().to_owned(), share(kind))).to_vec(),
            reference: None,
            errors: Vec::new(),
        }
        .svg(),
    )
}
