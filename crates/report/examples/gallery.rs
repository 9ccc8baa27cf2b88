//! Writes a page with every figure: `cargo run -p omma-report --example gallery -- gallery.html`.

use std::error::Error;

use omma_report::{
    Bars, Better, Dot, HeatMap, Histogram, Lines, Page, PictureCard, Scatter, Series, Thumbnail,
};

const CLASSES: [&str; 10] =
    ["aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "container ship", "lorry"];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("where should the page go?")?;
    let page = Page::new("Gallery of figures", "Every figure on one page, from made-up numbers")
        .facts([
            ("Accuracy", "93.4 %".to_owned(), "± 0.3 on 10 000 images".to_owned()),
            ("Parameters", "22.1 M".to_owned(), "5.7 M active per image".to_owned()),
            ("Cost", "1.26 GMACs".to_owned(), "per image".to_owned()),
            ("Time", "41 min".to_owned(), "12 000 steps on 8 cores".to_owned()),
        ])
        .text("The numbers are invented; the shapes are those that training and evaluation give.")
        .section("Training")
        .figures([loss(), rate(), load(), loads_by_layer()])
        .section("Predictions")
        .pictures(pictures())
        .section("Confusion")
        .figures([confusion(10), confusion(100), nothing()])
        .section("Evaluation")
        .table(
            &["model", "accuracy, %", "error of calibration", "cost, GMACs", "note"],
            &[
                ["Soft MoE S/16", "93.4 ± 0.3", "0.012", "1.26", "128 experts, one slot each"],
                ["V-MoE S/16", "92.8 ± 0.2", "0.019", "1.61", "top 2 of 32 experts"],
                ["ViT S/16", "91.0 ± 0.4", "0.031", "1.22", "dense"],
            ]
            .map(|row| row.map(str::to_owned).to_vec()),
        )
        .figures([roc(), reliability(), severity(), confidences(), pareto(), many()]);
    std::fs::write(path, page.html())?;
    Ok(())
}

/// Noise between −1 and 1 that is the same on every run.
fn noise(i: usize) -> f64 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f64 / f64::from(1 << 23) - 1.0
}

fn loss() -> String {
    let at = |i: usize| 0.25 + 2.0 * (-(i as f64) / 2500.0).exp();
    let train = (0..12_000).map(|i| (i as f64, at(i) * (1.0 + 0.25 * noise(i)))).collect();
    let validation = (0..=12).map(|i| (i as f64 * 1000.0, at(i * 1000) * 1.12)).collect();
    let validation =
        Series { error: Some(vec![0.06; 13]), ..Series::new("validation", validation) };
    Lines {
        title: "Loss".to_owned(),
        x_label: "step".to_owned(),
        y_label: "cross-entropy, nats".to_owned(),
        series: vec![Series::new("training", train), validation],
        log_y: true,
        ..Lines::default()
    }
    .svg()
}

fn rate() -> String {
    let at = |i: f64| if i < 500.0 { i / 500.0 } else { 0.5 * (1.0 + (i / 3820.0).cos()) };
    let points = (0..=1200).map(|i| (f64::from(i) * 10.0, 1e-3 * at(f64::from(i) * 10.0)));
    Lines {
        title: "Learning rate".to_owned(),
        x_label: "step".to_owned(),
        y_label: "rate".to_owned(),
        series: vec![Series::new("rate", points.collect())],
        ..Lines::default()
    }
    .svg()
}

fn load() -> String {
    let values = (0..32).map(|i| (1.0 + 0.6 * noise(i)) / 32.0).collect();
    Bars {
        title: "Load of the experts in layer 9".to_owned(),
        x_label: "expert".to_owned(),
        y_label: "share of tokens".to_owned(),
        labels: (0..32).map(|i| i.to_string()).collect(),
        groups: vec![("load".to_owned(), values)],
        reference: Some(("balanced".to_owned(), 1.0 / 32.0)),
        errors: Vec::new(),
    }
    .svg()
}

fn loads_by_layer() -> String {
    let values = |seed: usize| (0..10).map(|i| 0.1 + 0.06 * noise(i + seed)).collect::<Vec<_>>();
    Bars {
        title: "Tokens of each class that experts 0, 1 and 2 of the last layer process, as a share"
            .to_owned(),
        x_label: "class".to_owned(),
        y_label: "share of tokens".to_owned(),
        labels: CLASSES.map(str::to_owned).to_vec(),
        groups: (0..3).map(|i| (format!("expert {i}"), values(i * 31))).collect(),
        reference: None,
        errors: Vec::new(),
    }
    .svg()
}

fn pictures() -> Vec<PictureCard> {
    let card = |i: usize| {
        let size = 32u32;
        let (r, g) = (128.0 + 120.0 * noise(i), 128.0 + 120.0 * noise(i + 7));
        let pixel = |x: u32, y: u32| {
            let (dx, dy) = (f64::from(x) - 16.0, f64::from(y) - 16.0);
            let inside = dx * dx + dy * dy < 120.0 + 60.0 * noise(i * 3);
            if inside { [r as u8, g as u8, 180] } else { [40 + 3 * x as u8, 60 + 2 * y as u8, 90] }
        };
        let rgb: Vec<u8> =
            (0..size).flat_map(|y| (0..size).flat_map(move |x| pixel(x, y))).collect();
        let (truth, good) = (CLASSES[i % 10], i % 5 != 3);
        let said = if good { truth } else { CLASSES[(i + 2) % 10] };
        let detail = format!("{:.0} %", 70.0 + 29.0 * noise(i).abs());
        PictureCard {
            picture: Thumbnail::new(&rgb, size, size),
            alt: format!("a {truth} that is taken for a {said}"),
            caption: said.to_owned(),
            good: Some(good),
            detail: if good { detail } else { format!("{detail}, is a {truth}") },
        }
    };
    (0..14).map(card).collect()
}

fn confusion(classes: usize) -> String {
    let value = |i: usize, j: usize| {
        if i == j {
            (90.0 + 8.0 * noise(i)).round()
        } else {
            (noise(i * classes + j) * 12.0 - if classes > 10 { 10.5 } else { 8.0 }).max(0.0).round()
        }
    };
    let names: Vec<_> = match classes {
        10 => CLASSES.map(str::to_owned).to_vec(),
        _ => (0..classes).map(|i| format!("class {i}")).collect(),
    };
    HeatMap {
        title: format!("Confusion of {classes} classes"),
        row_label: "truth".to_owned(),
        column_label: "prediction".to_owned(),
        rows: names.clone(),
        columns: names,
        values: (0..classes).map(|i| (0..classes).map(|j| value(i, j)).collect()).collect(),
    }
    .svg()
}

fn nothing() -> String {
    Lines { title: "A run that ended before its first step".to_owned(), ..Lines::default() }.svg()
}

fn roc() -> String {
    let curve =
        |power: f64| (0..=100).map(|i| f64::from(i) / 100.0).map(move |x| (x, x.powf(power)));
    Lines {
        title: "Telling known from unknown".to_owned(),
        x_label: "false positive rate".to_owned(),
        y_label: "true positive rate".to_owned(),
        series: vec![
            Series::new("entropy (0.94)", curve(0.08).collect()),
            Series::new("largest probability (0.91)", curve(0.14).collect()),
            Series { dashed: true, ..Series::new("energy (0.86)", curve(0.22).collect()) },
        ],
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: Some("chance".to_owned()),
        ..Lines::default()
    }
    .svg()
}

fn reliability() -> String {
    let centre = |i: usize| (i as f64 + 0.5) / 15.0;
    let points = (0..15).map(|i| (centre(i), centre(i).powf(1.25))).collect();
    let error = (0..15).map(|i| 0.02 + 0.03 * noise(i).abs()).collect();
    Lines {
        title: "Reliability".to_owned(),
        x_label: "confidence".to_owned(),
        y_label: "accuracy".to_owned(),
        series: vec![Series { error: Some(error), ..Series::new("model", points) }],
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: Some("perfect calibration".to_owned()),
        ..Lines::default()
    }
    .svg()
}

fn severity() -> String {
    let line = |name: &str, start: f64, slope: f64| Series {
        error: Some((0..6).map(|i| 0.4 + 0.2 * f64::from(i)).collect()),
        ..Series::new(name, (0..6).map(f64::from).map(|i| (i, start - slope * i * i)).collect())
    };
    Lines {
        title: "Accuracy under corruption".to_owned(),
        x_label: "severity".to_owned(),
        y_label: "accuracy, %".to_owned(),
        series: vec![
            line("Soft MoE", 93.4, 0.9),
            line("V-MoE", 92.8, 1.1),
            line("ensemble of four ViT", 92.9, 0.8),
            line("ViT", 91.0, 1.4),
        ],
        ..Lines::default()
    }
    .svg()
}

fn confidences() -> String {
    let values = |count: usize, power: f64| -> Vec<f64> {
        (0..count).map(|i| noise(i * 3).abs().powf(power)).collect()
    };
    Histogram {
        title: "Confidence".to_owned(),
        x_label: "largest probability".to_owned(),
        groups: vec![
            ("known classes".to_owned(), values(5000, 0.15)),
            ("unknown classes".to_owned(), values(1200, 0.8)),
        ],
        range: Some((0.0, 1.0)),
        shares: true,
        ..Histogram::default()
    }
    .svg()
}

fn pareto() -> String {
    let dots = |name: &str, shift: f64| -> Vec<Dot> {
        let sizes = [("Ti", 1.3, 72.0), ("S", 4.6, 80.0), ("B", 17.5, 84.0), ("L", 61.0, 86.5)];
        let dot = |(size, cost, score): (&str, f64, f64)| Dot {
            label: format!("{name} {size}/16"),
            x: cost * (1.0 + 0.1 * shift),
            y: score + shift,
            y_error: Some(0.4),
            ..Dot::default()
        };
        sizes.map(dot).to_vec()
    };
    Scatter {
        title: "Accuracy for cost".to_owned(),
        x_label: "GMACs per image".to_owned(),
        y_label: "accuracy, %".to_owned(),
        groups: vec![
            ("dense".to_owned(), dots("ViT", 0.0)),
            ("sparse".to_owned(), dots("V-MoE", 2.2)),
            ("soft".to_owned(), dots("Soft", 3.1)),
        ],
        log_x: true,
        pareto: Some((Better::Low, Better::High)),
        ..Scatter::default()
    }
    .svg()
}

fn many() -> String {
    let series = (0..9).map(|k| {
        let points = (0..400).map(|i| {
            let drift = (i as f64 / 400.0) * noise(k * 17);
            (i as f64, 0.5 + 0.4 * drift + 0.02 * noise(i + k * 1000))
        });
        let error = (k == 0).then(|| vec![0.05; 400]);
        Series { error, ..Series::new(format!("layer {}", k + 3), points.collect()) }
    });
    Lines {
        title: "Entropy of the router, layer by layer".to_owned(),
        x_label: "epoch".to_owned(),
        y_label: "entropy, as a share of the largest".to_owned(),
        series: series.collect(),
        y_range: Some((0.0, 1.0)),
        ..Lines::default()
    }
    .svg()
}
