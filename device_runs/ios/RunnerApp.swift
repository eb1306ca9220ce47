// One screen: what runs, how fast, and the text. The job starts by itself.
import SwiftUI

@main
struct RunnerApp: App {
    @StateObject private var runner = Runner()
    @Environment(\.scenePhase) private var phase

    var body: some Scene {
        WindowGroup {
            VStack(alignment: .leading, spacing: 12) {
                Text(runner.status).font(.headline)
                Text(runner.rate).font(.system(.title, design: .monospaced))
                ScrollView { Text(runner.text).frame(maxWidth: .infinity, alignment: .leading) }
            }
            .padding()
            .onAppear { runner.start() }
        }
        .onChange(of: phase) { _, now in
            if now == .background { les_stop_job() }  // iOS would suspend the run; its end is recorded instead
        }
    }
}
