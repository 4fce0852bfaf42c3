// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// goSwaps maps each operator to its replacement.
var goSwaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.REM: token.MUL, token.AND: token.OR, token.OR: token.AND,
	token.SHL: token.SHR, token.SHR: token.SHL, token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
}

// goMutants returns the mutants of a Go file. Generated files have no mutants.
func goMutants(file, text string) ([]mutant, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(parsed) {
		return nil, err
	}
	g := &goSource{source: source{file: file, text: text}, fset: fset}
	for _, declaration := range parsed.Decls {
		g.function = ""
		if f, ok := declaration.(*ast.FuncDecl); ok {
			g.function = functionName(f)
		}
		ast.PreorderStack(declaration, nil, g.visit)
	}
	return g.mutants, nil
}

// functionName returns "F" for functions and "T.F" for methods.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

type goSource struct {
	source
	fset     *token.FileSet
	function string
}

func (g *goSource) replace(from, to token.Pos, text string) {
	g.add(g.function, g.fset.Position(from).Offset, g.fset.Position(to).Offset, text)
}

func (g *goSource) code(node ast.Node) string {
	return g.text[g.fset.Position(node.Pos()).Offset:g.fset.Position(node.End()).Offset]
}

func (g *goSource) drop(node ast.Node) {
	g.replace(node.Pos(), node.End(), "")
}

func (g *goSource) swap(at token.Pos, operator token.Token) {
	if other, ok := goSwaps[operator]; ok {
		g.replace(at, at+token.Pos(len(operator.String())), other.String())
	}
}

// visit adds the mutants of a node. visit reports whether to visit the children.
func (g *goSource) visit(node ast.Node, stack []ast.Node) bool {
	switch n := node.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.BinaryExpr:
		if n.Op != token.ADD || !isText(n) {
			g.swap(n.OpPos, n.Op)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			g.replace(n.OpPos, n.OpPos+1, "")
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			if sign, ok := stack[len(stack)-1].(*ast.UnaryExpr); !ok || sign.Op != token.SUB {
				g.replace(n.Pos(), n.End(), "("+n.Value+" + 1)") // -2 rarely differs in effect from -1
			}
			g.replace(n.Pos(), n.End(), "("+n.Value+" - 1)")
		}
	case *ast.Ident:
		g.ident(n, stack)
	case *ast.IfStmt:
		if !isNegatedElsewhere(n.Cond) {
			g.replace(n.Cond.Pos(), n.Cond.End(), "!("+g.code(n.Cond)+")")
		}
	case *ast.IncDecStmt:
		g.swap(n.TokPos, n.Tok)
	case *ast.AssignStmt:
		g.swap(n.TokPos, n.Tok)
		g.assignment(n, stack)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok {
			if isLog(call) {
				return false
			}
			g.drop(n)
		}
	case *ast.DeferStmt:
		g.drop(n)
	case *ast.BranchStmt:
		g.branch(n)
	case *ast.ReturnStmt:
		return g.returned(n, stack)
	}
	return true
}

// ident flips booleans and swaps min and max.
func (g *goSource) ident(n *ast.Ident, stack []ast.Node) {
	others := map[string]string{"true": "false", "false": "true"}
	if call, ok := stack[len(stack)-1].(*ast.CallExpr); ok && call.Fun == n {
		others = map[string]string{"min": "max", "max": "min"}
	}
	if other, ok := others[n.Name]; ok {
		g.replace(n.Pos(), n.End(), other)
	}
}

// assignment drops an assignment. The right side is still evaluated.
func (g *goSource) assignment(n *ast.AssignStmt, stack []ast.Node) {
	switch parent := stack[len(stack)-1].(type) {
	case *ast.CommClause:
		return // a receive operation, which a case requires
	case *ast.ForStmt:
		if parent.Post == n {
			return // without this assignment a loop does not end
		}
	}
	switch {
	case n.Tok == token.DEFINE:
	case n.Tok != token.ASSIGN || allBlank(n.Lhs) || mentionsNil(n.Rhs):
		g.drop(n)
	default:
		g.replace(n.Lhs[0].Pos(), n.Lhs[len(n.Lhs)-1].End(), "_"+strings.Repeat(", _", len(n.Lhs)-1))
	}
}

func (g *goSource) branch(n *ast.BranchStmt) {
	switch n.Tok {
	case token.BREAK:
		g.replace(n.TokPos, n.TokPos+token.Pos(len("break")), "continue")
	case token.CONTINUE:
		g.replace(n.TokPos, n.TokPos+token.Pos(len("continue")), "break")
	default: // goto and fallthrough have no opposite
	}
}

// returned replaces a returned error by nil. returned reports whether the results have more
// mutants: callers ignore results beside an error.
func (g *goSource) returned(n *ast.ReturnStmt, stack []ast.Node) bool {
	results := resultsOf(stack)
	if len(n.Results) == 0 || len(n.Results) != results.NumFields() {
		return true
	}
	kind, ok := results.List[len(results.List)-1].Type.(*ast.Ident)
	last := n.Results[len(n.Results)-1]
	if !ok || kind.Name != "error" || g.code(last) == "nil" {
		return true
	}
	g.replace(last.Pos(), last.End(), "nil")
	if !isError(last) {
		return true
	}
	ast.PreorderStack(last, append(slices.Clone(stack), n), g.visit)
	return false
}

// isError reports whether a result is probably not nil.
func isError(result ast.Expr) bool {
	switch r := result.(type) {
	case *ast.Ident:
		return strings.HasPrefix(strings.ToLower(r.Name), "err")
	case *ast.SelectorExpr:
		return strings.HasPrefix(r.Sel.Name, "Err")
	case *ast.CallExpr:
		f, ok := r.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		of, ok := f.X.(*ast.Ident)
		return ok && (of.Name == "errors" || of.Name == "fmt" && f.Sel.Name == "Errorf")
	}
	return false
}

// resultsOf returns the results of the innermost function.
func resultsOf(stack []ast.Node) *ast.FieldList {
	for i := len(stack) - 1; i >= 0; i-- {
		switch f := stack[i].(type) {
		case *ast.FuncLit:
			return f.Type.Results
		case *ast.FuncDecl:
			return f.Type.Results
		}
	}
	return nil
}

// isText reports whether an operand is a string. The replacement of + does not compile for strings.
func isText(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return isText(e.X) || isText(e.Y)
	case *ast.BasicLit:
		return e.Kind == token.STRING
	}
	return false
}

// isNegatedElsewhere reports whether another mutant negates the condition.
func isNegatedElsewhere(condition ast.Expr) bool {
	switch c := condition.(type) {
	case *ast.UnaryExpr:
		return c.Op == token.NOT
	case *ast.BinaryExpr:
		return c.Op == token.EQL || c.Op == token.NEQ
	}
	return false
}

// isLog reports whether a call only writes to the log, which tests need not check.
func isLog(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	var logger string
	switch x := method.X.(type) {
	case *ast.Ident:
		logger = x.Name
	case *ast.SelectorExpr:
		logger = x.Sel.Name
	}
	switch strings.TrimSuffix(method.Sel.Name, "Context") {
	case "Debug", "Info", "Warn", "Error", "Log":
		return strings.EqualFold(logger, "log") || logger == "slog"
	}
	return false
}

func allBlank(expressions []ast.Expr) bool {
	for _, e := range expressions {
		if name, ok := e.(*ast.Ident); !ok || name.Name != "_" {
			return false
		}
	}
	return true
}

// mentionsNil reports whether nil is among the values. A program cannot assign nil to the blank
// identifier.
func mentionsNil(values []ast.Expr) bool {
	for _, v := range values {
		if name, ok := v.(*ast.Ident); ok && name.Name == "nil" {
			return true
		}
	}
	return false
}
