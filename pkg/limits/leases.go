// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// keepOpen is the time for which an ender keeps a page open. The agent's other readers and
	// writers open the page every second to every eight seconds, and the lender keeps the page open.
	keepOpen = 15 * time.Second
	// mostEnders bounds the leases that end at a time. Each takes a thread.
	mostEnders = 32
)

// enders end the leases on limits pages. While no program has a page open for writing, root in
// the page's container can take a lease on the page. An open that does not wait
// fails then, and the tenant could renew the lease without end.
type enders struct {
	mu    sync.Mutex
	paths map[string]bool
}

var ending = enders{paths: map[string]bool{}}

// end opens a page in the background, and waits for the end of the lease. The kernel ends the lease
// within 45 s, and grants no other lease during the wait and while the page is open.
func (e *enders) end(path string) {
	if filepath.Base(path) != LimitsFile {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.paths[path] || len(e.paths) == mostEnders {
		return
	}
	e.paths[path] = true
	go func() {
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			time.Sleep(keepOpen)
			f.Close()
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.paths, path)
	}()
}
