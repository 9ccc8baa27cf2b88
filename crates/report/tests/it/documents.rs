//! Every document is well formed, safe with any name, and asks nothing of the network.

use omma_report::{
    Bars, Better, Dot, Flow, FlowLink, FlowStage, HeatMap, Histogram, Lines, Page, PatchMap,
    PatchMark, PictureCard, PictureRow, Scatter, Series, Thumbnail,
};
use roxmltree::{Document, ParsingOptions};

const NAME: &str = "<script>\"&'\u{1}]]> кот 猫";

fn name() -> String {
    NAME.to_owned()
}

/// Every figure, with names that want escaping and the given values.
fn figures(values: &[f64]) -> Vec<String> {
    let (title, x_label, y_label) = (name(), name(), name());
    let points: Vec<_> = values.iter().enumerate().map(|(i, value)| (i as f64, *value)).collect();
    let series =
        Series { error: Some(values.to_vec()), steps: true, ..Series::new(name(), points) };
    let dots = values.iter().map(|value| Dot {
        label: name(),
        x: *value,
        y: *value,
        x_error: Some(1.0),
        y_error: Some(*value),
        marks: Vec::new(),
    });
    let groups = vec![(name(), values.to_vec()), (name(), values.to_vec())];
    let names: Vec<String> = values.iter().map(|_| name()).collect();
    let stage = FlowStage { name: name(), places: names.clone() };
    let links = values.iter().enumerate().map(|(place, amount)| FlowLink {
        from: place,
        to: values.len() - 1 - place,
        amount: *amount,
        kind: 0,
    });
    let patch = |value: &f64| {
        let (strength, word, hover) = (*value, name(), format!("{NAME} {value}"));
        value.is_finite().then_some(PatchMark { colour: 9, strength, word, hover })
    };
    let patches: Vec<_> = values.iter().map(patch).collect();
    let patches = if patches.iter().all(Option::is_none) { Vec::new() } else { patches };
    let lines = Lines {
        title: title.clone(),
        x_label: x_label.clone(),
        y_label: y_label.clone(),
        series: vec![series.clone(), series],
        diagonal: Some(name()),
        ..Lines::default()
    };
    let scatter = Scatter {
        title: title.clone(),
        x_label: x_label.clone(),
        y_label: y_label.clone(),
        groups: vec![(name(), dots.collect())],
        pareto: Some((Better::Low, Better::High)),
        ..Scatter::default()
    };
    vec![
        Lines { log_x: true, log_y: true, ..lines.clone() }.svg(),
        Scatter { log_x: true, log_y: true, ..scatter.clone() }.svg(),
        lines.svg(),
        scatter.svg(),
        Histogram {
            title: title.clone(),
            x_label: x_label.clone(),
            groups: groups.clone(),
            ..Histogram::default()
        }
        .svg(),
        Bars {
            title: title.clone(),
            x_label: x_label.clone(),
            y_label,
            labels: names.clone(),
            groups,
            reference: Some((name(), 0.5)),
            errors: Vec::new(),
        }
        .svg(),
        Flow {
            title: title.clone(),
            stages: vec![stage.clone(), stage],
            links: vec![links.collect()],
            kinds: vec![name()],
        }
        .svg(),
        PatchMap {
            title: title.clone(),
            grid: (1, patches.len()),
            picture: Some(Thumbnail::new(&[9; 12], 2, 2)),
            patches,
            legend: vec![(9, name())],
        }
        .svg(),
        HeatMap {
            title,
            row_label: x_label.clone(),
            column_label: x_label,
            rows: names.clone(),
            columns: names,
            values: vec![values.to_vec(); values.len()],
        }
        .svg(),
    ]
}

#[test]
fn figures_are_well_formed_whatever_the_values() {
    let long: Vec<f64> = (0..3000).map(f64::from).collect();
    let strange = [f64::NAN, -1.0, f64::INFINITY, 1e308, 5e-324, 0.0, 3.0, f64::NEG_INFINITY];
    for values in [&[][..], &[1.0], &[f64::NAN], &[2.0; 12], &[-3.0, -3.0], &strange, &long] {
        for svg in figures(values) {
            let document = Document::parse(&svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
            let root = document.root_element();
            assert_eq!((root.tag_name().name(), root.attribute("role")), ("svg", Some("img")));
            assert!(root.attribute("viewBox").is_some());
            assert_eq!(root.first_element_child().unwrap().tag_name().name(), "title");
            for bad in ["NaN", "inf", "<script", "e+", "xlink"] {
                assert!(!svg.contains(bad), "{bad} in\n{svg}");
            }
            assert_eq!(svg.matches("http").count(), 1, "only the name space");
        }
    }
}

#[test]
fn figures_without_values_say_so() {
    for svg in figures(&[]).iter().chain(&figures(&[f64::NAN])) {
        assert!(svg.contains("no data"), "{svg}");
    }
    assert!(!figures(&[1.0, 2.0]).iter().any(|svg| svg.contains("no data")));
}

#[test]
fn marks_tell_their_values() {
    for svg in figures(&[1.0, 2.5]) {
        let document = Document::parse(&svg).unwrap();
        let mut titles = document.descendants().filter(|node| node.has_tag_name(SVG_TITLE));
        assert!(titles.any(|node| node.text().is_some_and(|text| text.contains("2.5"))), "{svg}");
    }
}

const SVG_TITLE: (&str, &str) = ("http://www.w3.org/2000/svg", "title");

#[test]
fn pages_are_well_formed_and_need_no_network() {
    let card = PictureCard {
        picture: Thumbnail::new(&[9; 12], 2, 2),
        alt: name(),
        caption: name(),
        good: Some(false),
        detail: name(),
    };
    let row = PictureRow { title: name(), detail: name(), cards: vec![card.clone()] };
    let html = Page::new(NAME, NAME)
        .facts([(NAME, name(), name())])
        .section(NAME)
        .text(NAME)
        .table(&[NAME, "n"], &[vec![name(), "1".to_owned()]])
        .section(NAME)
        .figures(figures(&[1.0, 2.0]))
        .subsection(NAME)
        .figures([(figures(&[1.0, 2.0]).remove(0), NAME)])
        .pictures([card.clone()])
        .picture_rows([row.clone()])
        .strips([row])
        .html();
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&html, options).unwrap();
    let sections = document.descendants().filter(|node| node.has_tag_name("section"));
    assert_eq!(sections.count(), 2);
    let pictures = document.descendants().filter(|node| node.has_tag_name("img"));
    let described =
        pictures.filter(|node| node.attribute("alt").is_some_and(|alt| !alt.is_empty()));
    assert_eq!(described.count(), 3, "who cannot see a picture is told what it shows");
    assert!(!html.contains("<script") && !html.contains("@import") && !html.contains("url("));
    let links = html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "");
    assert!(!links.contains("http") && !links.contains("//"), "an address");
    for part in ["default-src 'none'", "img-src data:", "prefers-color-scheme: dark"] {
        assert!(html.contains(part), "{part}");
    }
}
