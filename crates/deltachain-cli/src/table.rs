//! Tables of text: columns as wide as their content. The last column may hold anything, since nothing follows it.

use anstyle::Style;

/// Which side of a column its cells lean to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Lays out `rows` below `columns`. Cells of the last column are never padded, so names of any width may stand there.
pub(crate) fn layout(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = columns.iter().map(|(title, _)| title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (place, cell) in cells.enumerate() {
            let last = place + 1 == columns.len();
            if place > 0 {
                text.push_str("  ");
            }
            let padding = " ".repeat(widths[place] - cell.chars().count());
            match columns[place].1 {
                Align::Left if last => text.push_str(cell),
                Align::Left => text.extend([cell, &padding]),
                Align::Right => text.extend([&padding, cell]),
            }
        }
        text.truncate(text.trim_end().len());
        text
    };
    let bold = Style::new().bold();
    let mut text = format!("{bold}{}{bold:#}", line(&mut columns.iter().map(|(title, _)| *title)));
    for row in rows {
        text.push('\n');
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let columns = [("a", Align::Left), ("number", Align::Right), ("name", Align::Left)];
        let rows = [["xyz", "1", "é"], ["ß", "1,000,000", "a long name"]].map(|row| row.map(str::to_owned).to_vec());
        let text = anstream::adapter::strip_str(&layout(&columns, &rows)).to_string();
        assert_eq!(text, "a       number  name\nxyz          1  é\nß    1,000,000  a long name");
    }
}
