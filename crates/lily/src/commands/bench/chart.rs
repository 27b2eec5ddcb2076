//! The figures as a picture: prefill and decode speed over the length of the prompt.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Report, Row};

/// Width and height, in pixels.
const SIZE: (u32, u32) = (960, 440);
const BLUE: RGBColor = RGBColor(0x1f, 0x5f, 0xb4);
const GREY: RGBColor = RGBColor(0x55, 0x5b, 0x66);

/// One panel of the picture.
struct Panel {
    title: &'static str,
    median: fn(&Row) -> f64,
    spread: fn(&Row) -> [f64; 2],
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "prefill, tokens per second",
        median: |row| row.prefill_tok_s,
        spread: |row| row.prefill_spread,
    },
    Panel {
        title: "decode, tokens per second",
        median: |row| row.decode_tok_s,
        spread: |row| row.decode_spread,
    },
];

/// An SVG file. Points are medians, the bars behind them reach from the slowest to the fastest round.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(text)
}

type DrawResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn draw(report: &Report, text: &mut String) -> DrawResult {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("lily: {} on {}", report.model, report.device);
    let root = root.titled(&title, ("sans-serif", 17).into_font().color(&BLACK))?;
    for (area, panel) in root.split_evenly((1, PANELS.len())).iter().zip(&PANELS) {
        draw_panel(area, panel, &report.rows)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    panel: &Panel,
    rows: &[Row],
) -> DrawResult {
    // Lengths double from point to point: each gets the same room.
    let lengths: Vec<f64> = rows.iter().map(|row| (row.length as f64).log2()).collect();
    let most = rows.iter().map(|row| (panel.spread)(row)[1]).fold(f64::MIN_POSITIVE, f64::max);
    let (first, last) = (
        lengths.iter().copied().fold(f64::INFINITY, f64::min),
        lengths.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    );
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(first - 0.3..last + 0.3, 0.0..1.12 * most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.2))
        .axis_style(GREY)
        .x_desc("tokens of the prompt")
        .x_labels(lengths.len().max(2))
        .x_label_formatter(&|power| length_label(power.exp2()))
        .y_label_formatter(&|value| number(*value))
        .label_style(("sans-serif", 12).into_font().color(&GREY))
        .draw()?;
    let points: Vec<(f64, f64)> =
        lengths.iter().copied().zip(rows.iter().map(panel.median)).collect();
    chart.draw_series(rows.iter().zip(&lengths).map(|(row, &x)| {
        let [slowest, fastest] = (panel.spread)(row);
        PathElement::new(vec![(x, slowest), (x, fastest)], BLUE.mix(0.35).stroke_width(5))
    }))?;
    chart.draw_series(LineSeries::new(points.iter().copied(), BLUE.stroke_width(2)))?;
    chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, BLUE.filled())))?;
    chart.draw_series(points.iter().map(|&(x, y)| {
        let style = ("sans-serif", 11).into_font().color(&BLACK);
        Text::new(number(y), (x - 0.12, y + 0.07 * most), style)
    }))?;
    Ok(())
}

/// 4096 as 4K.
fn length_label(length: f64) -> String {
    let length = length.round();
    if length >= 1024.0 { format!("{:.0}K", length / 1024.0) } else { format!("{length:.0}") }
}

/// With as many digits as a person reads.
fn number(value: f64) -> String {
    if value >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
