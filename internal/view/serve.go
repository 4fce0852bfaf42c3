// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"log/slog"
	"net/http"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
)

//go:embed page
var page embed.FS

// policy lets the page load its own files only.
const policy = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// Handler returns the handler of the page and of the data. ctx ends all queries of agents.
func (v *View) Handler(ctx context.Context) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // page is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+agentapi.ViewPath, http.StripPrefix(agentapi.ViewPath, http.FileServerFS(files)))
	mux.Handle("GET "+agentapi.FleetPath, endpoint.SharedPages("application/json", func() []byte {
		return encode(v.collect(ctx), v.Log)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

func encode(f fleetAnswer, log *slog.Logger) []byte {
	text, err := json.Marshal(f)
	if err != nil {
		log.Error("failed to encode the data of the agents", "error", err)
	}
	return text
}
