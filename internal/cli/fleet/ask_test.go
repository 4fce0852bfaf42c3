// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// TestQuietEnd checks that a command that its caller ends prints nothing on the terminal.
func TestQuietEnd(t *testing.T) {
	var printed bytes.Buffer
	state := klog.CaptureState()
	defer state.Restore()
	flags := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(flags)
	if err := errors.Join(flags.Set("logtostderr", "false"), flags.Set("stderrthreshold", "FATAL")); err != nil {
		t.Fatal(err)
	}
	klog.SetOutput(&printed)

	started := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection, err := (&websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		close(started)
		for err == nil {
			_, _, err = connection.ReadMessage()
		}
	}))
	defer api.Close()
	f, err := New(&rest.Config{Host: api.URL}, "ns")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	var out bytes.Buffer
	if err := f.run(ctx, Agent{Node: "n", Pod: "p"}, strings.NewReader(""), &out, "watch"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	time.Sleep(100 * time.Millisecond) // the goroutines of the streams end after the call
	klog.Flush()
	if printed.Len() > 0 {
		t.Errorf("printed:\n%s", &printed)
	}
}
