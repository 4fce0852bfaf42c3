// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// floor is the percentage of mutants that tests must kill in each package of packages.txt.
const floor = 90

// A campaign tries mutants of some packages.
type campaign struct {
	options
	root     string
	packages []string
	held     []string // packages that must reach the floor
	accepted accepted
	matches  *regexp.Regexp // the expression of --only, or nil
	out      io.Writer

	files   map[string]bool // files of the packages
	fits    map[string]bool // accepted mutants that exist; with --all, that survive
	scores  []score
	journal *journal // nil with --list
}

// A score is the result of a package's tests.
type score struct {
	Name                      string
	Mutants, Killed, Accepted int
	Took                      time.Duration
	Survivors                 []string // as printed
	Fits                      []string // keys of accepted mutants that survived
}

func (s score) percent() int {
	return 100 * s.Killed / max(s.Mutants, 1)
}

// run visits all packages, even after an error of a package.
func (c *campaign) run(ctx context.Context) error {
	c.files, c.fits = map[string]bool{}, map[string]bool{}
	shop := newWorkshop(c.root)
	if !c.list {
		var err error
		if c.journal, err = openJournal(shop.dir, c.options); err != nil {
			return err
		}
		defer c.journal.Close()
	}
	var failed error
	for _, name := range c.packages {
		if err := c.visit(ctx, name, shop.suite(name)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	switch {
	case c.list:
		return failed
	case failed != nil:
		return errors.Join(failed, c.report())
	}
	return errors.Join(c.report(), c.stale())
}

// visit prints the mutants of a package, or tries them.
func (c *campaign) visit(ctx context.Context, name string, tests suite) error {
	mutants, err := tests.mutants()
	if err != nil {
		return err
	}
	if len(mutants) == 0 {
		return errors.New("there is nothing to change")
	}
	for _, m := range mutants {
		c.files[m.file] = true
		if _, ok := c.accepted[m.key]; ok && !c.all {
			c.fits[m.key] = true
		}
	}
	shuffle(mutants, c.seed)
	mutants = slices.DeleteFunc(mutants, c.excludes)
	if c.list {
		for _, m := range mutants {
			fmt.Fprintln(c.out, m)
		}
		return nil
	}
	s, known := c.journal.scores[name]
	if known {
		for _, line := range s.Survivors {
			fmt.Fprintln(c.out, line)
		}
	} else {
		start := time.Now()
		if err := tests.prepare(ctx); err != nil {
			return err
		}
		s, err = c.try(ctx, tests, mutants)
		s.Name, s.Took = name, time.Since(start)
		if err == nil {
			err = c.journal.add(s)
		}
	}
	for _, key := range s.Fits {
		c.fits[key] = true
	}
	c.scores = append(c.scores, s)
	return err
}

// excludes reports whether a mutant is excluded. Accepted mutants are excluded unless --all
// is set.
func (c *campaign) excludes(m mutant) bool {
	_, ok := c.accepted[m.key]
	return ok && !c.all || c.matches != nil && !c.matches.MatchString(m.String())
}

// try tries mutants until the requested number of them count.
func (c *campaign) try(ctx context.Context, tests suite, mutants []mutant) (score, error) {
	var s score
	for _, m := range mutants {
		if s.Mutants == c.number && !c.all && c.matches == nil {
			break
		}
		v, err := tests.try(ctx, m)
		if err != nil {
			return s, err
		}
		_, ok := c.accepted[m.key]
		switch {
		case v == void:
		case ok && v == survived:
			s.Accepted++
			s.Fits = append(s.Fits, m.key)
		case ok:
		case v == survived:
			s.Mutants++
			s.Survivors = append(s.Survivors, m.String())
			fmt.Fprintln(c.out, m)
		default:
			s.Mutants++
			s.Killed++
		}
	}
	return s, nil
}

// report prints the table. report returns an error if a package is below the floor.
func (c *campaign) report() error {
	var err error
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nmutants\tkilled\tpercent\tbound\taccepted\tseconds\t  package")
	for _, s := range c.scores {
		bound := "-"
		if slices.Contains(c.held, s.Name) {
			bound = strconv.Itoa(floor)
			if c.matches == nil && s.percent() < floor {
				err = errWeak
			}
		}
		fmt.Fprintf(table, "%d\t%d\t%d\t%s\t%d\t%.0f\t  %s\n", s.Mutants, s.Killed, s.percent(), bound, s.Accepted, s.Took.Seconds(), s.Name)
	}
	return errors.Join(err, table.Flush())
}

// stale returns an error that lists the accepted entries without a mutant. stale ignores
// entries for files of other packages, unless all packages are tried.
func (c *campaign) stale() error {
	var err error
	if c.matches != nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(c.accepted)) {
		file, _, _ := strings.Cut(key, ":")
		if !c.fits[key] && (c.files[file] || c.options.packages == "") {
			err = errors.Join(err, fmt.Errorf("accepted.txt: no mutant survives that is %q", key))
		}
	}
	return err
}
