// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/leased"
)

// Node maintains variants of the interposer's libraries for the node's driver. The
// driver may be installed or replaced while the agent runs.
type Node struct {
	// Plain is the directory of the libraries as built. Parent is the directory of the
	// variants.
	Plain, Parent string
	// Find returns the driver's libraries.
	Find func() Paths
	// Changed receives each new variant, and the reason why a library is used as built.
	Changed func(Variant, error)

	mu      sync.Mutex
	seen    map[string]stamp
	variant Variant
	// again reports whether the last attempt, at the time tried, failed because of nri-vgpu's files, or
	// of a lease on a file.
	again bool
	tried time.Time
}

// retryPause is the pause before another attempt.
const retryPause = time.Minute

// stamp identifies a version of a file.
type stamp struct {
	path     string
	size     int64
	modified time.Time
}

// Dir returns the directory of the libraries for the current driver. Dir is cheap
// while the driver's files are unchanged. If the libraries could not be written, or a process
// has a lease on a file, Dir tries again after retryPause.
func (n *Node) Dir() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	driver := n.Find()
	seen := stamps(driver)
	changed := n.seen == nil || !same(n.seen, seen)
	if changed || n.again && time.Since(n.tried) >= retryPause {
		variant, err := Make(n.Plain, n.Parent, driver)
		n.seen, n.variant, n.again, n.tried = seen, variant, errors.As(err, new(fileError)) || errors.Is(err, leased.Err), time.Now()
		if changed || !n.again {
			n.Changed(variant, err)
		}
	}
	return n.variant.Dir
}

func stamps(driver Paths) map[string]stamp {
	all := map[string]stamp{}
	for name, path := range driver {
		s := stamp{path: path}
		if info, err := os.Stat(path); err == nil {
			s.size, s.modified = info.Size(), info.ModTime()
		}
		all[name] = s
	}
	return all
}

func same(a, b map[string]stamp) bool {
	if len(a) != len(b) {
		return false
	}
	for name, s := range a {
		if other, ok := b[name]; !ok || other.path != s.path || other.size != s.size || !other.modified.Equal(s.modified) {
			return false
		}
	}
	return true
}

// Write writes a variant to a file for the doctor.
func (v Variant) Write(path string) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the driver's names: %w", err)
	}
	if err := renameio.WriteFile(path, append(data, '\n'), 0o644, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("write the driver's names: %w", err)
	}
	return nil
}

// Read reads a file that Write has written.
func Read(path string) (Variant, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Variant{}, fmt.Errorf("read the driver's names: %w", err)
	}
	var v Variant
	if err := json.Unmarshal(data, &v); err != nil {
		return Variant{}, fmt.Errorf("read the driver's names: %s: %w", path, err)
	}
	return v, nil
}
