// Package chaos breaks things on a real node, at random and all the time, and
// looks all the time whether the promises hold: while pods of all kinds come
// and go, the agent, the patcher, containerd, kubelet and the API server are
// killed, stopped and slowed, GPUs fail and the state directory is full. Only
// the GPU is simulated, and its simulator, which knows nothing of limits, is
// the judge.
//
// `make image` comes first. `make chaos MINUTES=20` is the long form.
//
// Jumps of the wall clock are not among what happens: time namespaces have
// none of their own, so that a jump would be the whole machine's.
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
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

var (
	duration = flag.Duration("chaos.duration", time.Minute, "how long things are broken")
	round    = flag.Duration("chaos.round", 4*time.Minute, "how often all is mended, and looked at what is left")
	hostile  = flag.Int("chaos.hostile", 2, "tenants that attack the node and others")
	seed     = flag.Uint64("chaos.seed", 0, "of all random choices; 0: a new one")
	output   = flag.String("chaos.summary", "", "a file to which the summary is written, as JSON")
)

const (
	name = "chaos"
	gpus = 4
	// gpuMemory is such that every dialect's unit is a whole number of MiB.
	gpuMemory = 20000 * mib
	mib       = 1 << 20
	// contextBytes is what a context takes of a simulated GPU.
	contextBytes = 512 * mib
	runDir       = "/run/nri-vgpu"

	// shortestRound is for calms that took long.
	shortestRound = 30 * time.Second
	// patience is for what takes some seconds on an idle machine.
	patience = 2 * time.Minute
	// freed is how soon after the last pod's end its reservation is gone. The
	// promise is 5 s; the rest is for reading it.
	freed = 8 * time.Second
)

// eager makes kubelet start again at once what has ended, or most of the time
// nothing would be there to be killed.
//
// What is left of the process table is Kubernetes' to divide.
const eager = `crashLoopBackOff: {maxContainerRestartPeriod: 1s}
podPidsLimit: 300
`

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(m.Run())
}

// TestChaos: whatever dies, no container holds more than it was given, none
// that asks for nothing sees a GPU, none runs without its limits, what runs is
// not disturbed, and what has gone leaves nothing behind.
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

// world is the node, what runs on it, and what has been seen.
type world struct {
	*testing.T
	*testbed.Bed
	seed  uint64
	begin time.Time

	count    *counts
	told     sync.Map // what brokenOnce has told
	subjects subjects
	scanner  *scanner
	faults   faultLog    // of GPUs
	full     faultLog    // of /run
	tenants  []*tenant   // hostile ones
	calmNow  atomic.Bool // nothing is broken
	results  results
	probes   sync.WaitGroup
	spent    time.Duration // breaking things
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

// slots is how many containers may share a GPU: by default a tenant whose pods ask for little
// could take the places of all others, as no quota counts them.
const slots = 200

// makeRoom has agent and patcher count so many slots.
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

// loadGuard restarts containerd, as docs/operations.md has it done once after
// the first install.
func (w *world) loadGuard() {
	w.Helper()
	if err := w.Cluster.Restart(w.Context(), cluster.Containerd); err != nil {
		w.Fatal(err)
	}
	if err := eventually(w.Context(), patience, w.agentServes); err != nil {
		w.Fatal(err)
	}
}

// log prints at once: a test's own log comes when it has ended.
func (w *world) log(format string, args ...any) {
	fmt.Printf("chaos %6.1fs: %s\n", time.Since(w.begin).Seconds(), strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// broken notes that a promise was broken.
func (w *world) broken(promise, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	w.log("BROKEN %s: %s", promise, message)
	w.count.add("broken", promise)
	w.Errorf("%6.1fs: %s: %s", time.Since(w.begin).Seconds(), promise, message)
}

// brokenOnce tells of each culprit once: it is looked at all the time.
func (w *world) brokenOnce(promise, culprit, format string, args ...any) {
	if _, again := w.told.LoadOrStore(promise+" "+culprit, true); !again {
		w.broken(promise, format, args...)
	}
}

func (w *world) random(lane uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, lane)) }

// watch begins to look, until down.
func (w *world) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.scanner = newScanner(w)
	for _, watcher := range []func(context.Context){w.scanner.run, w.watchMemory, w.watchLogs, w.watchPods, w.watchRun, w.watchMetrics} {
		w.watchers.Go(func() { watcher(ctx) })
	}
}

// round breaks things for a while.
func (w *world) round(length time.Duration) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(w.Context(), length)
	defer cancel()
	lane := uint64(begin.Sub(w.begin)) << 8
	if w.spent == 0 {
		lane = 0
	}
	w.log("breaking things for %v", length.Round(time.Second))
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

// sleep tells whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// between is a random duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// eventually waits until there is no error; the last is returned.
func eventually(ctx context.Context, within time.Duration, check func() error) error {
	for end := time.Now().Add(within); ; {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(end) || !sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}
