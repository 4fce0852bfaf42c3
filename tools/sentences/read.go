// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
)

// read returns the prose of a file: the text of a Markdown document, or the comments of any other file.
func read(file, source string) ([]paragraph, error) {
	switch filepath.Ext(file) {
	case ".md":
		return markdown(source), nil
	case ".go":
		return goComments(source)
	case ".c", ".h", ".S", ".inc":
		return cComments(source), nil
	}
	return hashComments(source), nil
}

func goComments(source string) ([]paragraph, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []paragraph
	for _, group := range file.Comments {
		var lines []line
		for _, c := range group.List {
			lines = append(lines, uncomment(files.Position(c.Pos()).Line, c.Text)...)
		}
		all = append(all, paragraphs(lines)...)
	}
	return all, nil
}

// cToken matches a string, a character, or a comment. Comments on consecutive lines without code are one
// comment.
var cToken = regexp.MustCompile(`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?s:/\*.*?\*/)|(?m:^[ \t]*//.*(?:\n[ \t]*//.*)*)|//.*`)

func cComments(source string) []paragraph {
	var all []paragraph
	for _, at := range cToken.FindAllStringIndex(source, -1) {
		if token := source[at[0]:at[1]]; token[0] != '"' && token[0] != '\'' {
			all = append(all, paragraphs(uncomment(1+strings.Count(source[:at[0]], "\n"), token))...)
		}
	}
	return all
}

// mark matches the marks of a comment at the beginning of a line. A space after the marks is a part of
// the marks.
var mark = regexp.MustCompile(`^[ \t]*(?://|/\*+|\*)? ?`)

// uncomment returns the lines of a comment of C or Go. Directives such as //go:embed become empty lines.
func uncomment(first int, comment string) []line {
	var lines []line
	for i, text := range strings.Split(strings.TrimSuffix(comment, "*/"), "\n") {
		if directive.MatchString(text) {
			text = ""
		}
		lines = append(lines, line{first + i, text[len(mark.FindString(text)):]})
	}
	return lines
}

// directive matches a comment for a program, such as a compiler or a linter.
var directive = regexp.MustCompile(`^//(?:[a-z]+:\S|nolint)`)

// hashComments returns the comments of a language whose comments begin with #, such as shell and YAML.
func hashComments(source string) []paragraph {
	var all []paragraph
	var block []line
	for i, text := range strings.Split(source, "\n") {
		if comment, ok := strings.CutPrefix(strings.TrimSpace(text), "#"); ok && !strings.HasPrefix(comment, "!") {
			block = append(block, line{i + 1, strings.TrimPrefix(comment, " ")})
			continue
		}
		all = append(all, paragraphs(block)...)
		block = nil
		if comment := trailing(text); comment != "" {
			all = append(all, paragraph{{i + 1, comment}})
		}
	}
	return append(all, paragraphs(block)...)
}

// trailing returns the comment at the end of a line of code.
func trailing(text string) string {
	code := ""
	for piece := range strings.SplitSeq(text, " # ") {
		if code != "" && strings.Count(code, `"`)%2 == 0 && strings.Count(code, "'")%2 == 0 {
			return text[len(code)+len(" # "):]
		}
		if code != "" {
			code += " # "
		}
		code += piece
	}
	return ""
}

// item matches the mark of a list's item.
var item = regexp.MustCompile(`^[ \t]*(?:[-*+]|[0-9]+[.)])[ \t]+`)

// paragraphs splits a comment at empty lines, at the items of lists, and at the rows of tables and of
// examples, which are indented. A line that is indented more than a row or an item continues it.
func paragraphs(lines []line) []paragraph {
	var all []paragraph
	indent := -1 // of the current paragraph; -1 outside paragraphs
	for _, l := range lines {
		text := strings.TrimSpace(l.text)
		if text == "" || strings.HasPrefix(text, "SPDX-License-Identifier:") {
			indent = -1
			continue
		}
		deep := len(l.text) - len(strings.TrimLeft(l.text, " \t"))
		mark := item.FindString(l.text)
		switch {
		case mark != "":
			indent = deep + 1
			text = l.text[len(mark):]
		case indent < 0 || (deep == 0) != (indent == 0) || deep > 0 && deep <= indent:
			indent = deep
		default:
			all[len(all)-1] = append(all[len(all)-1], line{l.number, text})
			continue
		}
		all = append(all, paragraph{{l.number, text}})
	}
	return all
}

// markdown returns the paragraphs, items of lists and cells of tables of a document, without its headings
// and blocks of code. A line break inside a paragraph (two spaces at the end of a line) ends a paragraph.
func markdown(source string) []paragraph {
	var all []paragraph
	var current paragraph
	end := func() {
		all = append(all, current)
		current = nil
	}
	fenced := false
	for i, text := range strings.Split(source, "\n") {
		text = strings.TrimLeft(text, " \t>")
		switch {
		case strings.HasPrefix(text, "```"):
			fenced = !fenced
			end()
		case fenced:
		case text == "" || strings.HasPrefix(text, "#"):
			end()
		case strings.HasPrefix(text, "|"):
			for _, cell := range strings.Split(text, "|") {
				all = append(all, paragraph{{i + 1, cell}})
			}
		case item.MatchString(text):
			end()
			current = paragraph{{i + 1, text[len(item.FindString(text)):]}}
		default:
			current = append(current, line{i + 1, text})
		}
		if strings.HasSuffix(text, "  ") {
			end()
		}
	}
	end()
	return all
}
