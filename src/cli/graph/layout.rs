//! Boxes in layers, top to bottom, so that every edge goes down: ranks by the longest way, order by the neighbours'
//! middle, places by pulling each box towards its neighbours. Whole pixels, so that a picture is the same anywhere.

/// Between two boxes of a layer, and between two layers.
const GAP: (i64, i64) = (28, 44);
/// Width of the way an edge keeps free where it passes a layer.
const LANE: i64 = 10;
/// Most such ways; with more, edges go straight.
const MAX_LANES: usize = 20_000;
/// Rounds of ordering and of pulling.
const ROUNDS: usize = 8;

/// A box to be placed.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) width: i64,
    pub(super) height: i64,
    /// Boxes above it, by their place in the list.
    pub(super) needs: Vec<usize>,
}

/// Where everything goes.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// By item: its left upper corner.
    pub(super) places: Vec<(i64, i64)>,
    pub(super) routes: Vec<Route>,
    pub(super) width: i64,
    pub(super) height: i64,
}

/// The way of an edge: from the lower side of one item to the upper side of another.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) to: usize,
    pub(super) points: Vec<(i64, i64)>,
}

/// A box, or the way of an edge through a layer.
struct Cell {
    width: i64,
    layer: usize,
    left: i64,
    above: Vec<usize>,
    below: Vec<usize>,
}

impl Cell {
    fn new(width: i64, layer: usize) -> Self {
        Self { width, layer, left: 0, above: Vec::new(), below: Vec::new() }
    }

    fn middle(&self) -> i64 {
        self.left + self.width / 2
    }
}

/// Places `items`. Their needs go in no circle.
pub(super) fn layout(items: &[Item]) -> Layout {
    let ranks = ranks(items);
    let mut cells: Vec<Cell> = items.iter().zip(&ranks).map(|(i, rank)| Cell::new(i.width, *rank)).collect();
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); ranks.iter().max().map_or(0, |r| r + 1)];
    for (item, rank) in ranks.iter().enumerate() {
        layers[*rank].push(item);
    }
    // Every edge as a way of cells from one layer to the next.
    let lanes: usize = edges(items).map(|(from, to)| ranks[to] - ranks[from] - 1).sum();
    let mut ways = Vec::new();
    for (from, to) in edges(items) {
        let mut way = vec![from];
        if lanes <= MAX_LANES {
            for (layer, row) in layers.iter_mut().enumerate().take(ranks[to]).skip(ranks[from] + 1) {
                way.push(cells.len());
                row.push(cells.len());
                cells.push(Cell::new(LANE, layer));
            }
        }
        way.push(to);
        for pair in way.windows(2) {
            cells[pair[0]].below.push(pair[1]);
            cells[pair[1]].above.push(pair[0]);
        }
        ways.push(way);
    }
    order(&cells, &mut layers);
    spread(&mut cells, &layers);

    let mut tops = Vec::with_capacity(layers.len());
    let mut y = 0;
    for row in &layers {
        let height = row.iter().filter_map(|c| items.get(*c)).map(|i| i.height).max().unwrap_or(0);
        tops.push((y, height));
        y += height + GAP.1;
    }
    let routes = ways
        .into_iter()
        .map(|way| {
            let mut points = Vec::new();
            for (n, cell) in way.iter().enumerate() {
                let (x, (top, height)) = (cells[*cell].middle(), tops[cells[*cell].layer]);
                match items.get(*cell) {
                    // Straight to the edge of the layer: a box is less high than its neighbour, perhaps.
                    Some(item) if n == 0 => {
                        points.extend([(x, top + height.midpoint(item.height)), (x, top + height)]);
                    }
                    Some(item) => points.extend([(x, top), (x, top + (height - item.height) / 2)]),
                    None => points.extend([(x, top), (x, top + height)]),
                }
            }
            // The last step gives the arrow its direction, so none goes nowhere.
            points.dedup();
            Route { to: way[way.len() - 1], points }
        })
        .collect();
    let places = items
        .iter()
        .zip(&cells)
        .map(|(item, cell)| (cell.left, tops[cell.layer].0 + (tops[cell.layer].1 - item.height) / 2))
        .collect();
    let width = cells.iter().map(|c| c.left + c.width).max().unwrap_or(0);
    Layout { places, routes, width, height: (y - GAP.1).max(0) }
}

fn edges(items: &[Item]) -> impl Iterator<Item = (usize, usize)> {
    items.iter().enumerate().flat_map(|(to, item)| item.needs.iter().map(move |from| (*from, to)))
}

/// The longest way from the top to each item.
fn ranks(items: &[Item]) -> Vec<usize> {
    let mut below = vec![Vec::new(); items.len()];
    for (from, to) in edges(items) {
        below[from].push(to);
    }
    let mut waiting: Vec<usize> = items.iter().map(|i| i.needs.len()).collect();
    let mut ready: Vec<usize> = (0..items.len()).filter(|i| waiting[*i] == 0).collect();
    let mut ranks = vec![0; items.len()];
    while let Some(item) = ready.pop() {
        for next in &below[item] {
            ranks[*next] = ranks[*next].max(ranks[item] + 1);
            waiting[*next] -= 1;
            if waiting[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    ranks
}

/// Orders each layer by the middle of what its cells hang together with, from above and from below in turn.
fn order(cells: &[Cell], layers: &mut [Vec<usize>]) {
    let mut place = vec![0i64; cells.len()];
    let number = |row: &[usize], place: &mut Vec<i64>| {
        for (n, cell) in row.iter().enumerate() {
            place[*cell] = n as i64;
        }
    };
    for row in layers.iter() {
        number(row, &mut place);
    }
    for round in 0..ROUNDS {
        let down = round % 2 == 0;
        for at in 0..layers.len() {
            let row = if down { at } else { layers.len() - 1 - at };
            let row = &mut layers[row];
            row.sort_by_cached_key(|cell| {
                let near = if down { &cells[*cell].above } else { &cells[*cell].below };
                let sum: i64 = near.iter().map(|n| place[*n] * 1_000).sum();
                sum.checked_div(near.len() as i64).unwrap_or(place[*cell] * 1_000)
            });
            number(row, &mut place);
        }
    }
}

/// Gives every cell its left side: in the order of its layer, as near to its neighbours as its layer allows.
fn spread(cells: &mut [Cell], layers: &[Vec<usize>]) {
    let gap = |a: &Cell, b: &Cell| if a.width == LANE && b.width == LANE { LANE } else { GAP.0 };
    for row in layers {
        let mut x = 0;
        for (n, cell) in row.iter().enumerate() {
            if n > 0 {
                x += gap(&cells[row[n - 1]], &cells[*cell]);
            }
            cells[*cell].left = x;
            x += cells[*cell].width;
        }
        // Around one middle.
        for cell in row {
            cells[*cell].left -= x / 2;
        }
    }
    for round in 0..ROUNDS {
        let down = round % 2 == 0;
        for at in 0..layers.len() {
            let row = &layers[if down { at } else { layers.len() - 1 - at }];
            let wanted: Vec<i64> = row
                .iter()
                .map(|cell| {
                    let cell = &cells[*cell];
                    let near = if down { &cell.above } else { &cell.below };
                    let sum: i64 = near.iter().map(|n| cells[*n].middle()).sum();
                    sum.checked_div(near.len() as i64).unwrap_or_else(|| cell.middle()) - cell.width / 2
                })
                .collect();
            let mut off = 0;
            for (n, cell) in row.iter().enumerate() {
                let free = match n.checked_sub(1) {
                    None => wanted[n],
                    Some(before) => {
                        let before = &cells[row[before]];
                        wanted[n].max(before.left + before.width + gap(before, &cells[*cell]))
                    }
                };
                cells[*cell].left = free;
                off += wanted[n] - free;
            }
            // What was pushed to the right is brought back in the middle.
            let off = off.checked_div(row.len() as i64).unwrap_or(0);
            for cell in row {
                cells[*cell].left += off;
            }
        }
    }
    let least = cells.iter().map(|c| c.left).min().unwrap_or(0);
    for cell in cells.iter_mut() {
        cell.left -= least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(needs: &[&[usize]]) -> Vec<Item> {
        needs.iter().map(|n| Item { width: 100, height: 40, needs: n.to_vec() }).collect()
    }

    #[test]
    fn every_edge_goes_down_and_no_two_boxes_touch() {
        let items = items(&[&[], &[0], &[0], &[1, 2], &[0, 3], &[], &[5, 0], &[6, 4, 1]]);
        let layout = layout(&items);
        for (n, item) in items.iter().enumerate() {
            let (x, y) = layout.places[n];
            assert!(x >= 0 && y >= 0 && x + 100 <= layout.width && y + 40 <= layout.height);
            for need in &item.needs {
                assert!(layout.places[*need].1 + 40 < y);
            }
            for other in 0..n {
                let (ox, oy) = layout.places[other];
                assert!(x >= ox + 100 || ox >= x + 100 || y >= oy + 40 || oy >= y + 40, "{n} on {other}");
            }
        }
        for route in &layout.routes {
            assert!(route.points.windows(2).all(|p| p[0].1 <= p[1].1));
            let (x, y) = layout.places[route.to];
            assert_eq!(route.points.last(), Some(&(x + 50, y)));
        }
        assert_eq!(layout.routes.len(), 11);
    }

    #[test]
    fn a_chain_is_one_column_and_nothing_is_nothing() {
        let chain = layout(&items(&[&[], &[0], &[1]]));
        assert_eq!(chain.places, [(0, 0), (0, 84), (0, 168)]);
        assert_eq!((chain.width, chain.height), (100, 208));
        let none = layout(&[]);
        assert_eq!((none.width, none.height), (0, 0));
    }
}
