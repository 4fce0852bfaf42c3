// SPDX-License-Identifier: Apache-2.0

// Command mutate measures how many small changes of the code the unit tests detect. The command
// makes one change, a mutant, at a time, and runs the unit tests of the mutant's package. The
// command prints each mutant that no test detects, and a table at the end.
//
// The command exits with 1 if a package of packages.txt is below the floor, or if
// accepted.txt has an entry without a mutant.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

type options struct {
	packages string
	only     string
	number   int
	seed     uint64
	all      bool
	list     bool
	resume   bool
}

// errWeak reports that the campaign succeeded but the tests are too weak.
var errWeak = errors.New("the unit tests are weaker than they should be")

func main() {
	var o options
	flag.StringVar(&o.packages, "packages", "", "packages, separated by commas; all of packages.txt if empty")
	flag.StringVar(&o.only, "only", "", "try only mutants whose line of output matches this regular expression, but all of these mutants")
	flag.IntVar(&o.number, "number", 30, "number of mutants to draw for each package")
	flag.Uint64Var(&o.seed, "seed", 1, "seed that determines the drawn mutants")
	flag.BoolVar(&o.all, "all", false, "try every mutant, including accepted mutants")
	flag.BoolVar(&o.list, "list", false, "print the mutants instead of trying them")
	flag.BoolVar(&o.resume, "resume", false, "keep the scores of packages that an interrupted run with these options has tried")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	c, err := newCampaign(root, o)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// newCampaign reads the options and the lists in the repository.
func newCampaign(root string, o options) (*campaign, error) {
	var matches *regexp.Regexp
	if o.only != "" {
		var err error
		if matches, err = regexp.Compile(o.only); err != nil {
			return nil, fmt.Errorf("parse --only: %w", err)
		}
	}
	lists := filepath.Join(root, "tools", "mutate")
	text, err := os.ReadFile(filepath.Join(lists, "packages.txt"))
	if err != nil {
		return nil, err
	}
	held := parsePackages(string(text))
	if text, err = os.ReadFile(filepath.Join(lists, "accepted.txt")); err != nil {
		return nil, err
	}
	accepted, err := parseAccepted(string(text))
	if err != nil {
		return nil, fmt.Errorf("read accepted.txt: %w", err)
	}
	packages := held
	if o.packages != "" {
		packages = strings.Split(o.packages, ",")
	}
	return &campaign{
		options: o, root: root, packages: packages, held: held, accepted: accepted, matches: matches, out: os.Stdout,
	}, nil
}

// parsePackages parses a list of packages, one on each line. # begins a comment.
func parsePackages(text string) []string {
	var packages []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			packages = append(packages, line)
		}
	}
	return packages
}
