//! Draws probed links as one self-contained SVG file: devices as nodes on a circle, and a line for each pair.

use super::chart::CHARACTER;
use super::words::{self, printable};
use crate::{LinkReport, ProbedLink};
use maud::{Markup, PreEscaped, html};

/// Dimensions in pixels: margin of the sheet, height of the heading, size of a node, distance of the nodes on
/// the circle, and height of a line of text.
const MARGIN: f64 = 24.0;
const HEADING: f64 = 70.0;
const NODE: [f64; 2] = [160.0, 30.0];
const DISTANCE: f64 = 480.0;
const LINE: f64 = 15.0;
/// Positions of a label on its line: a distance from the middle, in steps of this fraction of the line, and
/// the maximum number of steps.
const STEP: f64 = 0.04;
const MAX_STEPS: u32 = 8;
/// Size of the transfers whose rate is shown.
const SHOWN_BYTES: u64 = 16 << 20;

/// A rectangle, by its center and its size.
#[derive(Clone, Copy, Debug)]
struct Area {
    center: [f64; 2],
    size: [f64; 2],
}

impl Area {
    fn overlaps(&self, other: &Self) -> bool {
        let is_near =
            |at: usize| (self.center[at] - other.center[at]).abs() < (self.size[at] + other.size[at]) / 2.0;
        is_near(0) && is_near(1)
    }

    fn corner(&self) -> [f64; 2] {
        [0, 1].map(|at| self.center[at] - self.size[at] / 2.0)
    }
}

/// A line between two devices, and its label.
struct Line<'a> {
    ends: [Area; 2],
    links: Vec<&'a ProbedLink>,
    label: Area,
}

/// Draws devices as nodes, and each pair of devices as a line with route, latency and rate in both
/// directions. Links without a verified route are red and dashed.
pub fn links(report: &LinkReport) -> String {
    let (names, nodes, [width, height]) = nodes(report);
    let lines = lines(report, &names, &nodes);
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (px(width)) " " (px(height)) }
            width=(px(width)) height=(px(height))
            font-family="system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" font-size="12" role="img" {
            title { "Links between devices" }
            style { (PreEscaped(include_str!("palette.css"))) }
            rect class="sheet" width=(px(width)) height=(px(height)) {}
            text class="text" x=(MARGIN) y="38" font-size="20" font-weight="600" { "Links between devices" }
            text class="note" x=(MARGIN) y="56" {
                "Latency is the time of 4 KiB in a run. Rates are those of 16 MiB."
            }
            @for line in &lines { (line.draw()) }
            @for line in &lines { (line.draw_label()) }
            @for (name, node) in names.iter().zip(&nodes) { (draw_node(name, node)) }
        }
    };
    drawing.into_string() + "\n"
}

/// Returns the names of the devices, their places on a circle, and the size of the sheet.
fn nodes(report: &LinkReport) -> (Vec<&str>, Vec<Area>, [f64; 2]) {
    let mut names: Vec<&str> = Vec::new();
    for link in &report.links {
        for name in [&link.from, &link.to] {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let radius = DISTANCE / 2.0 / (std::f64::consts::PI / names.len().max(2) as f64).sin();
    let node = |at: usize| {
        // The first device is on the left, so that the line between two devices is horizontal.
        let angle = std::f64::consts::PI * (1.0 + 2.0 * at as f64 / names.len() as f64);
        [radius * angle.cos(), radius * angle.sin()]
    };
    let centers: Vec<_> = (0..names.len()).map(node).collect();
    let most = |at: usize| centers.iter().map(|center| center[at].abs()).fold(0.0, f64::max);
    let half = [most(0) + NODE[0] / 2.0 + MARGIN, most(1).max(3.0 * LINE) + NODE[1] / 2.0 + MARGIN];
    let place =
        |center: [f64; 2]| Area { center: [half[0] + center[0], HEADING + half[1] + center[1]], size: NODE };
    let nodes = centers.into_iter().map(place).collect();
    (names, nodes, [2.0 * half[0], HEADING + 2.0 * half[1]])
}

/// Returns the lines of all pairs. Places the labels so that they overlap neither each other nor a node, as
/// far as possible.
fn lines<'a>(report: &'a LinkReport, names: &[&str], nodes: &[Area]) -> Vec<Line<'a>> {
    let (mut taken, mut lines) = (nodes.to_vec(), Vec::new());
    for (first, a) in names.iter().enumerate() {
        for (second, b) in names.iter().enumerate().skip(first + 1) {
            let is_theirs =
                |link: &&ProbedLink| [[*a, *b], [*b, *a]].contains(&[link.from.as_str(), link.to.as_str()]);
            let links: Vec<_> = report.links.iter().filter(is_theirs).collect();
            let ends = [nodes[first], nodes[second]];
            let texts = links.iter().flat_map(|link| [words(link), hardware(link)]);
            let longest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
            let size = [longest as f64 * CHARACTER + 8.0, (links.len() + 1) as f64 * LINE];
            let at = |t: f64| Area {
                center: [0, 1].map(|c| ends[0].center[c] * (1.0 - t) + ends[1].center[c] * t),
                size,
            };
            let is_free = |area: &Area| !taken.iter().any(|other| other.overlaps(area));
            let label = positions().map(at).find(is_free).unwrap_or_else(|| at(0.5));
            taken.push(label);
            lines.push(Line { ends, links, label });
        }
    }
    lines
}

/// Returns the positions along a line at which its label may stand. The middle comes first.
fn positions() -> impl Iterator<Item = f64> {
    (0..=MAX_STEPS).map(|steps| f64::from(steps) * STEP).flat_map(|off| [0.5 - off, 0.5 + off])
}

/// Describes a link in one line.
fn words(link: &ProbedLink) -> String {
    let rate = link.rates.iter().find(|rate| rate.bytes == SHOWN_BYTES);
    let to = printable(&link.to);
    // A quick probe measures no rates.
    let rate = rate.map_or(String::new(), |rate| format!(", {:.1} GB/s", rate.bytes_per_s / 1e9));
    match (link.route, link.latency_us) {
        (Some(route), Some(us)) => format!("→ {to}: {}, {}{rate}", route.name(), words::time(us)),
        _ => format!("→ {to}: not verified"),
    }
}

/// Describes the hardware between two devices.
fn hardware(link: &ProbedLink) -> String {
    match link.numa_distance {
        Some(distance) => format!("{}, NUMA distance {distance}", link.class),
        None => link.class.to_string(),
    }
}

impl Line<'_> {
    fn draw(&self) -> Markup {
        let [from, to] = self.ends.map(|end| end.center);
        let is_verified = self.links.iter().all(|link| link.route.is_some());
        let shares = self.links.iter().all(|link| link.route.is_some_and(|route| route.shares_memory()));
        let class = match (is_verified, shares) {
            (false, _) => "off",
            (true, true) => "c0",
            (true, false) => "c5",
        };
        html! {
            line class=(class) x1=(px(from[0])) y1=(px(from[1])) x2=(px(to[0])) y2=(px(to[1]))
                stroke-width=(if is_verified { "2" } else { "3" })
                stroke-dasharray=[(!is_verified).then_some("7 4")] {}
        }
    }

    fn draw_label(&self) -> Markup {
        let ([x, y], [width, height]) = (self.label.corner(), self.label.size);
        let class = self.links.first().map(|link| hardware(link));
        let row = |at: usize| px(y + at as f64 * LINE - 4.0);
        html! {
            g class="link" {
                rect class="sheet" x=(px(x)) y=(px(y)) width=(px(width)) height=(px(height)) {}
                @for (at, link) in (1..).zip(&self.links) {
                    text class=(if link.route.is_some() { "note" } else { "note warn" })
                        x=(px(self.label.center[0])) y=(row(at)) text-anchor="middle" {
                        @if let Some(why) = link.unverified() { title { (printable(&why)) } }
                        (words(link))
                    }
                }
                @if let Some(class) = class {
                    text class="note" x=(px(self.label.center[0])) y=(row(self.links.len() + 1))
                        text-anchor="middle" { (class) }
                }
            }
        }
    }
}

fn draw_node(name: &str, node: &Area) -> Markup {
    let [x, y] = node.corner();
    html! {
        g {
            rect class="bar c0" x=(px(x)) y=(px(y)) width=(NODE[0]) height=(NODE[1]) rx="6" {}
            text class="in-bar" x=(px(node.center[0])) y=(px(node.center[1] + 4.0)) text-anchor="middle" {
                (printable(name))
            }
        }
    }
}

fn px(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkClass, LinkRate};
    use ragtag_transfer::Route;

    /// Returns the links between `count` devices. The links to the last device are not verified.
    fn report(count: usize) -> LinkReport {
        let link = |from: usize, to: usize| {
            let route = (to + 1 < count).then_some(Route::Peer);
            let rate = LinkRate {
                bytes: SHOWN_BYTES,
                bytes_per_s: 219e9,
                both_bytes_per_s: None,
                busy_bytes_per_s: 2e11,
                both_busy_bytes_per_s: None,
            };
            ProbedLink {
                from: format!("opencl:{from}"),
                to: format!("opencl:{to}"),
                class: LinkClass::Host,
                numa_distance: Some(10),
                route,
                latency_us: route.map(|_| 2.4),
                rates: vec![rate],
                quick: false,
                tried: Vec::new(),
                measured_unix_s: 0,
            }
        };
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let links = pairs.filter(|(from, to)| from != to).map(|(from, to)| link(from, to)).collect();
        LinkReport { links, ..LinkReport::default() }
    }

    #[test]
    fn labels_and_nodes_do_not_overlap() {
        for count in 2..=9 {
            let report = report(count);
            let (names, nodes, [width, height]) = nodes(&report);
            let lines = lines(&report, &names, &nodes);
            assert_eq!(lines.len(), count * (count - 1) / 2);
            let areas: Vec<_> = nodes.iter().copied().chain(lines.iter().map(|line| line.label)).collect();
            for (at, area) in areas.iter().enumerate() {
                let [x, y] = area.corner();
                assert!(x >= 0.0 && y >= HEADING && x + area.size[0] <= width && y + area.size[1] <= height);
                assert!(!areas[..at].iter().any(|other| other.overlaps(area)), "{count} devices: {area:?}");
            }
        }
    }

    #[test]
    fn a_link_without_a_route_stands_out() {
        let drawing = links(&report(3));
        let document = roxmltree::Document::parse(&drawing).unwrap();
        let count = |tag: &str, class: &str| {
            let is_it = |node: &roxmltree::Node<'_, '_>| {
                node.has_tag_name(tag) && node.attribute("class") == Some(class)
            };
            document.descendants().filter(is_it).count()
        };
        assert_eq!((count("line", "c0"), count("line", "off")), (1, 2), "{drawing}");
        assert_eq!(count("text", "note warn"), 2, "{drawing}");
        assert!(drawing.contains("→ opencl:1: peer, 2.4 µs, 219.0 GB/s"), "{drawing}");
    }
}
