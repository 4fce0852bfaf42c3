// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
)

// cSwaps maps each operator of C to its replacement.
var cSwaps = map[string]string{
	"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
	"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "&": "|", "|": "&", "<<": ">>", ">>": "<<",
	"+=": "-=", "-=": "+=",
}

// cWords maps names to their replacements.
var cWords = map[string]string{
	"true": "false", "false": "true", "break": "continue", "continue": "break",
	"vg_min": "vg_max", "vg_max": "vg_min",
}

// cKeywords are words that begin neither a call nor an assignment.
var cKeywords = strings.Fields(`break case const continue default do else enum extern for goto if
	register return sizeof static struct switch typedef union volatile while _Static_assert`)

var cToken = regexp.MustCompile(strings.Join([]string{
	`(?s://.*?\n)`, `(?s:/\*.*?\*/)`, // comments
	`(?m:^[ \t]*#(?:\\\n|[^\n])*)`, // directives
	`"(?:\\.|[^"\\\n])*"`, `'(?:\\.|[^'\\\n])*'`,
	`[A-Za-z_]\w*`,
	`\.?[0-9](?:[eEpP][+-]|[\w.])*`,
	`<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\.\.\.`,
	`[^\s\w]`,
}, "|"))

// A cTok is a token of a C file. Comments and directives are not tokens.
type cTok struct {
	text       string
	start, end int
}

func (t cTok) isWord() bool {
	return t.text[0] == '_' || 'a' <= t.text[0]|0x20 && t.text[0]|0x20 <= 'z'
}

func isNumber(text string) bool {
	return text[0] >= '0' && text[0] <= '9'
}

func cTokens(text string) []cTok {
	var tokens []cTok
	for _, at := range cToken.FindAllStringIndex(text, -1) {
		t := cTok{text[at[0]:at[1]], at[0], at[1]}
		directive := strings.HasPrefix(strings.TrimLeft(t.text, " \t"), "#")
		if !directive && !strings.HasPrefix(t.text, "//") && !strings.HasPrefix(t.text, "/*") {
			tokens = append(tokens, t)
		}
	}
	return tokens
}

// cMutants returns the mutants of a C file in the style of this repository. Binary operators
// stand between blanks, and functions begin at depth 0.
func cMutants(file, text string) []mutant {
	c := &cSource{source: source{file: file, text: text}, tokens: cTokens(text)}
	depth := 0
	name := ""
	for i, t := range c.tokens {
		switch {
		case depth == 0 && t.isWord() && c.at(i+1) == "(" && t.text != "__attribute__":
			name = t.text
		case depth == 0 && t.text == "{" && c.at(i-1) == ")":
			c.function = name
		}
		if c.startsStatement(i) {
			c.statement(i)
		}
		c.token(i)
		switch t.text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
			if depth == 0 && t.text == "}" {
				c.function = ""
			}
		}
	}
	return c.mutants
}

type cSource struct {
	source
	tokens   []cTok
	function string
}

// at returns the text of a token, or "" if i is out of range.
func (c *cSource) at(i int) string {
	if i < 0 || i >= len(c.tokens) {
		return ""
	}
	return c.tokens[i].text
}

func (c *cSource) replace(from, to int, text string) {
	c.add(c.function, c.tokens[from].start, c.tokens[to].end, text)
}

// token adds the mutants of a single token.
func (c *cSource) token(i int) {
	t := c.tokens[i]
	if other, ok := cWords[t.text]; ok {
		c.replace(i, i, other)
	}
	if other, ok := cSwaps[t.text]; ok && c.isBinary(t) {
		c.replace(i, i, other)
	}
	switch {
	case t.text == "++":
		c.replace(i, i, "--")
	case t.text == "--":
		c.replace(i, i, "++")
	case t.text == "!":
		c.replace(i, i, "")
	case isNumber(t.text):
		if c.at(i-1) != "-" || c.isBinary(c.tokens[i-1]) { // -2 rarely differs in effect from -1
			c.replace(i, i, "("+t.text+" + 1)")
		}
		c.replace(i, i, "("+t.text+" - 1)")
	case t.text == "if" && c.at(i+1) == "(":
		c.negate(i + 1)
	}
}

// isBinary reports whether an operator has two operands. No blank follows the star of a pointer or
// a sign.
func (c *cSource) isBinary(t cTok) bool {
	const blanks = " \t\n"
	return t.start > 0 && t.end < len(c.text) &&
		strings.IndexByte(blanks, c.text[t.start-1]) >= 0 && strings.IndexByte(blanks, c.text[t.end]) >= 0
}

// closing returns the index of the bracket that closes the bracket at i, or -1.
func (c *cSource) closing(i int) int {
	depth := 0
	for ; i < len(c.tokens); i++ {
		switch c.tokens[i].text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

// negate negates the condition in the parentheses at i, unless other mutants negate the condition.
func (c *cSource) negate(i int) {
	end := c.closing(i)
	if end < 0 {
		return
	}
	var equality, logical bool
	for k := i + 1; k < end; k++ {
		switch c.at(k) {
		case "==", "!=":
			equality = true
		case "&&", "||":
			logical = true
		}
	}
	if logical || !equality && c.at(i+1) != "!" {
		c.replace(i, end, "(!"+c.text[c.tokens[i].start:c.tokens[end].end]+")")
	}
}

// startsStatement reports whether the token is the first of a statement in a function.
func (c *cSource) startsStatement(i int) bool {
	if c.function == "" {
		return false
	}
	switch c.at(i - 1) {
	case ";", "{", "}", "else", "do":
		return true
	case ")":
		return c.endsHeader(i - 1)
	case ":": // a new line follows the colon of a case, but not the colon of ?:
		return strings.Contains(c.text[c.tokens[i-1].end:c.tokens[i].start], "\n")
	}
	return false
}

// endsHeader reports whether the parenthesis at i closes the header of an if, for or while.
func (c *cSource) endsHeader(i int) bool {
	depth := 0
	for ; i >= 0; i-- {
		switch c.tokens[i].text {
		case ")":
			depth++
		case "(":
			depth--
		}
		if depth == 0 {
			return slices.Contains([]string{"if", "for", "while", "switch"}, c.at(i-1))
		}
	}
	return false
}

// statement adds the mutants of the statement at i. The mutants drop a call or an assignment,
// or replace a returned value by 0.
func (c *cSource) statement(i int) {
	end := c.endOfStatement(i)
	if end <= i || c.at(i) == "{" {
		return
	}
	if c.at(i) == "return" {
		if end > i+1 && !isConstant(c.tokens[i+1:end]) {
			c.replace(i+1, end-1, "0")
		}
		return
	}
	equals := c.assignment(i, end)
	switch {
	case slices.Contains(cKeywords, c.at(i)):
	case equals < 0 && c.at(end-1) == ")" && !c.declares(i, c.parenthesis(i)):
		c.replace(i, end, ";")
	case equals < 0 || c.declares(i, equals):
	case c.calls(equals+1, end) && c.at(equals) == "=":
		c.replace(i, end-1, "(void)("+c.text[c.tokens[equals+1].start:c.tokens[end-1].end]+")")
	default:
		c.replace(i, end, ";")
	}
}

// endOfStatement returns the index of the semicolon that ends the statement at i, or -1.
func (c *cSource) endOfStatement(i int) int {
	for ; i < len(c.tokens); i++ {
		switch c.tokens[i].text {
		case ";":
			return i
		case "(", "[", "{":
			if i = c.closing(i); i < 0 {
				return -1
			}
		case ")", "]", "}":
			return -1
		}
	}
	return -1
}

// assignment returns the index of the assignment operator of a statement, or -1.
func (c *cSource) assignment(i, end int) int {
	for ; i < end; i++ {
		switch t := c.at(i); t {
		case "(", "[", "{":
			i = c.closing(i)
		case "==", "!=", "<=", ">=":
		default:
			if strings.HasSuffix(t, "=") {
				return i
			}
		}
	}
	return -1
}

// parenthesis returns the index of the first opening parenthesis at or after i.
func (c *cSource) parenthesis(i int) int {
	for i < len(c.tokens) && c.at(i) != "(" {
		i++
	}
	return i
}

// declares reports whether an assignment declares its target: two names follow each other,
// perhaps with a star between them.
func (c *cSource) declares(i, equals int) bool {
	for ; i+1 < equals; i++ {
		if c.at(i) == "[" {
			i = c.closing(i)
		} else if c.tokens[i].isWord() && (c.tokens[i+1].isWord() || c.at(i+1) == "*") {
			return true
		}
	}
	return false
}

// calls reports whether the tokens contain a call.
func (c *cSource) calls(i, end int) bool {
	for ; i+1 < end; i++ {
		if c.tokens[i].isWord() && c.at(i+1) == "(" && c.at(i) != "sizeof" {
			return true
		}
	}
	return false
}

// isConstant reports whether a returned value is absent, or a constant that has other
// mutants.
func isConstant(tokens []cTok) bool {
	if len(tokens) != 1 {
		return false
	}
	t := tokens[0].text
	return t == "NULL" || t == "true" || t == "false" || t == "CUDA_SUCCESS" || isNumber(t)
}
