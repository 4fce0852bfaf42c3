// SPDX-License-Identifier: Apache-2.0

// Package chaos injects random failures on a real node, and continuously checks whether the
// promises hold. The test creates and deletes pods of all kinds. Meanwhile, the test kills, stops
// and slows the agent, the patcher, containerd, kubelet and the API server. The test also makes
// GPUs fail, and fills the state directory. Only the GPU is simulated. The simulator, which knows
// no limits, provides the reference values.
//
// Run `make image` first. `make chaos MINUTES=20` runs the test for 20 minutes.
//
// The wall clock does not jump: time namespaces have no wall clock, so a jump would affect the
// whole machine.
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

var (
	duration = flag.Duration("chaos.duration", time.Minute, "duration of the failures")
	round    = flag.Duration("chaos.round", 4*time.Minute, "interval at which to end all faults and check the leftovers")
	hostile  = flag.Int("chaos.hostile", 2, "number of tenants that attack the node and other tenants")
	seed     = flag.Uint64("chaos.seed", 0, "seed of all random choices; 0: a new seed")
	output   = flag.String("chaos.summary", "", "a file to which the summary is written, as JSON")
)

const (
	name = "chaos"
	gpus = 4
	// gpuMemory is the memory of a GPU, of which every dialect's unit is a whole number of MiB.
	gpuMemory = 20000 * mib
	mib       = 1 << 20
	// contextBytes is the size of a context on a simulated GPU.
	contextBytes = 512 * mib
	runDir       = "/run/nri-vgpu"

	// shortestRound is the length of a round after calms that took long.
	shortestRound = 30 * time.Second
	// patience bounds operations that take some seconds on an idle machine.
	patience = 2 * time.Minute
	// freed is the time after the last pod's end within which the pod's reservation must be gone.
	// The promise is 5 s; the rest is the time to read the state.
	freed = 8 * time.Second
)

// eager makes kubelet restart ended containers immediately. With kubelet's usual delays, the test
// would often find no process to kill.
//
// With podPidsLimit, a hostile pod cannot use up the node's process ids.
const eager = `crashLoopBackOff: {maxContainerRestartPeriod: 1s}
podPidsLimit: 300
`

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(m.Run())
}

// TestChaos checks containers under any failure. No container exceeds its allocation or runs
// without its limits, and no container that requests no GPU sees a GPU. Failures disturb no running
// container, and ended containers leave no state behind.
func TestChaos(t *testing.T) {
	w := newWorld(t)
	defer w.down()
	w.settle()
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		w.calm(min(longestCalm, *duration/8))
		w.round(max(shortestRound, min(*round, time.Until(end))))
		w.settle()
	}
	w.summarize()
}

// world is the node, its pods, and the observations.
type world struct {
	*testing.T
	*testbed.Bed
	seed  uint64
	begin time.Time

	count    *counts
	told     sync.Map // culprits that brokenOnce has reported
	subjects subjects
	scanner  *scanner
	faults   faultLog    // of GPUs
	full     faultLog    // of /run
	tenants  []*tenant   // hostile tenants
	calmNow  atomic.Bool // no failures are injected
	results  results
	probes   sync.WaitGroup
	spent    time.Duration // time with injected failures
	stop     context.CancelFunc
	watchers sync.WaitGroup
}

func newWorld(t *testing.T) *world {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, seed: *seed, begin: time.Now(), count: newCounts()}
	if w.seed == 0 {
		w.seed = rand.Uint64()
	}
	t.Logf("seed %d", w.seed)
	w.Bed, err = testbed.Up(t.Context(), testbed.Options{
		Name: name, Source: source, GPUs: gpus, GPUMemory: gpuMemory,
		Kubelet: eager,
		Setup:   [][]string{{"mount", "-o", "remount,size=" + runSize + ",nr_inodes=" + runInodes, "/run"}},
		Log:     w.log,
	})
	if err != nil {
		if w.Bed != nil {
			err = errors.Join(err, w.Down(true))
		}
		t.Fatal(err)
	}
	w.makeRoom()
	w.loadGuard()
	w.results.Tenants = *hostile
	w.makeTenants(*hostile)
	w.watch()
	w.makeSteady()
	return w
}

// slots is the number of containers that may share a GPU. With the default, a tenant could take all
// slots with small pods, because no quota counts slots.
const slots = 200

// makeRoom configures agent and patcher with this number of slots.
func (w *world) makeRoom() {
	w.Helper()
	ctx := w.Context()
	config, err := w.Config(ctx)
	if err != nil {
		w.Fatal(err)
	}
	config = strings.Replace(config, "\nslots_per_gpu = 10\n", fmt.Sprintf("\nslots_per_gpu = %d\n", slots), 1)
	if _, err := w.SetConfig(ctx, config, patience); err != nil {
		w.Fatal(err)
	}
	err = w.Client.CoreV1().Pods(testbed.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=extended-resource-patcher"})
	if err == nil {
		err = w.WaitCapacity(ctx, testbed.Number, gpus*slots, patience)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// loadGuard restarts containerd, as docs/how-to/install.md describes for the first installation.
func (w *world) loadGuard() {
	w.Helper()
	if err := w.Cluster.Restart(w.Context(), cluster.Containerd); err != nil {
		w.Fatal(err)
	}
	if err := eventually.Check(w.Context(), patience, w.agentServes); err != nil {
		w.Fatal(err)
	}
}

// log prints immediately, because go test prints a test's own log only after the test.
func (w *world) log(format string, args ...any) {
	fmt.Printf("chaos %6.1fs: %s\n", time.Since(w.begin).Seconds(), strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// broken records that a promise was broken.
func (w *world) broken(promise, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	w.log("BROKEN %s: %s", promise, message)
	w.count.add("broken", promise)
	w.Errorf("%6.1fs: %s: %s", time.Since(w.begin).Seconds(), promise, message)
}

// brokenOnce reports each broken promise once per subject, because the watchers detect a broken
// promise repeatedly.
func (w *world) brokenOnce(promise, culprit, format string, args ...any) {
	if _, again := w.told.LoadOrStore(promise+" "+culprit, true); !again {
		w.broken(promise, format, args...)
	}
}

func (w *world) random(lane uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, lane)) }

// watch starts the watchers, which run until down.
func (w *world) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.scanner = newScanner(w)
	for _, watcher := range []func(context.Context){w.scanner.run, w.watchMemory, w.watchLogs, w.watchPods, w.watchRun, w.watchMetrics} {
		w.watchers.Go(func() { watcher(ctx) })
	}
}

// round injects failures for a time.
func (w *world) round(length time.Duration) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(w.Context(), length)
	defer cancel()
	lane := uint64(begin.Sub(w.begin)) << 8
	if w.spent == 0 {
		lane = 0
	}
	w.log("injecting failures for %v", length.Round(time.Second))
	var all sync.WaitGroup
	for i, actor := range []func(context.Context, *rand.Rand){w.createPods, w.breakOurs, w.breakNode, w.breakHardware} {
		all.Go(func() { actor(ctx, w.random(lane+uint64(i))) })
	}
	all.Go(func() { w.attackAll(ctx, false) })
	all.Wait()
	w.spent += time.Since(begin)
}

func (w *world) down() {
	w.stop()
	w.watchers.Wait()
	if err := w.Down(w.Failed()); err != nil {
		w.Errorf("take the cluster down: %v", err)
	}
	if w.Failed() {
		w.log("the logs are in %s/logs", w.Cluster.StateDir)
	}
}

// between returns a random duration between two durations.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}
